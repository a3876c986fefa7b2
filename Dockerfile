# The service in an image: `docker build -t tasklatch .`, or `docker compose up --build`.

FROM rust:1.95-slim-bookworm AS build
WORKDIR /build
COPY .cargo .cargo
COPY Cargo.toml Cargo.lock ./
# The dependencies in a layer of their own, which is built anew only when they change: with a program that does nothing, and
# every file that Cargo.toml names.
RUN mkdir -p src examples/tasklatch-bench tests/torture \
    && echo 'fn main() {}' | tee src/main.rs examples/tasklatch-bench/main.rs tests/torture/main.rs >/dev/null \
    && touch src/lib.rs \
    && cargo build --release --locked --bin tasklatch \
    && rm -r src
COPY migrations migrations
COPY src src
# Cargo goes by times, and those of the files may be older than those of the stand-ins above.
RUN touch src/main.rs src/lib.rs && cargo build --release --locked --bin tasklatch

FROM debian:bookworm-slim
# Volumes take their owner from these folders when they are made.
RUN groupadd --gid 10001 tasklatch \
    && useradd --uid 10001 --gid tasklatch --no-create-home --shell /usr/sbin/nologin tasklatch \
    && install --directory --owner tasklatch --group tasklatch --mode 0750 \
        /var/lib/tasklatch /var/lib/nats /secrets /secrets/ca /secrets/nats /secrets/service /secrets/clients
COPY --from=build /build/target/release/tasklatch /usr/local/bin/tasklatch
USER 10001:10001
WORKDIR /var/lib/tasklatch
ENV TASKLATCH_DATABASE=/var/lib/tasklatch/tasklatch.db
# SIGTERM drains: what is in hand is answered and published.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=4s --start-period=30s --retries=3 CMD ["tasklatch", "health"]
ENTRYPOINT ["tasklatch"]
CMD ["serve"]
