-- The store of the designs that do what tasklatch does with a transaction for each report.

CREATE TABLE tasks (
    task_id    TEXT    PRIMARY KEY,
    title      TEXT    NOT NULL,
    metadata   TEXT,
    lifecycle  TEXT    NOT NULL,
    revision   INTEGER NOT NULL,
    created_at TEXT    NOT NULL,
    updated_at TEXT    NOT NULL
) STRICT;

-- The payload of the first report, as it was sent: one that is sent again is compared with its bytes.
CREATE TABLE results (
    task_id     TEXT PRIMARY KEY REFERENCES tasks (task_id),
    report      BLOB NOT NULL,
    reported_at TEXT NOT NULL
) STRICT;

-- What must still be published if this process ends before it is.
CREATE TABLE outbox (
    seq      INTEGER PRIMARY KEY,
    task_id  TEXT    NOT NULL,
    revision INTEGER NOT NULL
) STRICT;
