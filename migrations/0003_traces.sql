-- The trace that a report belongs to, until its events are published and have left the outbox: so that they carry it also if
-- the process ends between the commit and their publishing. Only for reports that came with one.
CREATE TABLE revision_traces (
    seq         INTEGER PRIMARY KEY REFERENCES revisions (seq),
    -- Of W3C Trace Context, with the span of the service that accepted the report.
    traceparent TEXT    NOT NULL CHECK (octet_length(traceparent) = 55),
    tracestate  TEXT    CHECK (octet_length(tracestate) BETWEEN 1 AND 512)
) STRICT;

CREATE TRIGGER traces_go_with_their_revision AFTER DELETE ON revisions
BEGIN
    DELETE FROM revision_traces WHERE seq = OLD.seq;
END;
