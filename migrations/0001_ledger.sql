-- The ledger of a tasklatch service: what was asked, how it ended, and what observers must still hear.
--
-- One rule stands above the rest: the first accepted report of a task latches. Its row in `results` is written once, in the
-- transaction that ends the task, and never changes or goes away. The service decides with a pure function; the triggers and
-- CHECK constraints below guard the same rules again, so that no other road into this file can break them unnoticed.
--
-- Times are microseconds since 1970-01-01T00:00:00Z, as integers: they sort, compare and come back to the last digit.
-- Rows are keyed by integers in the order of their making, since task IDs come from creators and may be random.
--
-- A rule that runs with every row has no IN over three words or more: SQLite makes a table of them each time. That took 10 of
-- the 25 µs of a report.

-- "task", so that a file of another program is told apart before anything in it is touched.
PRAGMA application_id = 0x7461736b;

-- Who this ledger is, and how far its events have been published. One row.
CREATE TABLE ledger (
    only_row      INTEGER PRIMARY KEY CHECK (only_row = 1),
    -- Made when the ledger is made, and anew by a restore: an event after a restore is never taken for one from before it.
    ledger_id     TEXT    NOT NULL CHECK (octet_length(ledger_id) BETWEEN 1 AND 64),
    created_at    INTEGER NOT NULL,
    -- The cursor of the outbox: every revision up to this `seq` is known to have been published.
    published_seq INTEGER NOT NULL DEFAULT 0 CHECK (published_seq >= 0),
    -- Counts writes that were only made to see whether the store can be written again.
    probes        INTEGER NOT NULL DEFAULT 0
) STRICT;

-- A task as it is now. The columns that change stand first, so that changing them rewrites little.
CREATE TABLE tasks (
    task_key    INTEGER PRIMARY KEY,
    lifecycle   TEXT    NOT NULL CHECK (
        lifecycle = 'submitted' OR lifecycle = 'working' OR lifecycle = 'completed' OR lifecycle = 'failed'
        OR lifecycle = 'rejected' OR lifecycle = 'canceled' OR lifecycle = 'expired'),
    revision    INTEGER NOT NULL CHECK (revision >= 1),
    updated_at  INTEGER NOT NULL,
    task_id     TEXT    NOT NULL UNIQUE CHECK (octet_length(task_id) BETWEEN 1 AND 128 AND task_id NOT GLOB '*[^A-Za-z0-9_-]*'),
    -- The seat that the task was given to. Kept for ever: closing a pane changes nothing here.
    pane_id     TEXT    CHECK (octet_length(pane_id) BETWEEN 1 AND 512),
    deadline    INTEGER,
    created_at  INTEGER NOT NULL,
    title       TEXT    NOT NULL CHECK (octet_length(title) BETWEEN 1 AND 1024),
    metadata    TEXT    CHECK (octet_length(metadata) <= 65536),
    reason      TEXT    CHECK (octet_length(reason) <= 16384),
    verdict     TEXT    CHECK (verdict = 'approved' OR verdict = 'rework' OR verdict = 'blocked'),
    note        TEXT    CHECK (octet_length(note) <= 16384),
    reviewer    TEXT    CHECK (octet_length(reviewer) <= 256),
    reviewed_at INTEGER,
    CHECK (updated_at >= created_at),
    CHECK (deadline > created_at),
    CHECK (lifecycle = 'canceled' OR reason IS NULL),
    CHECK (verdict IS NULL OR lifecycle = 'completed' OR lifecycle = 'failed' OR lifecycle = 'rejected'),
    CHECK ((verdict IS NULL) = (reviewed_at IS NULL)),
    CHECK (verdict IS NOT NULL OR (note IS NULL AND reviewer IS NULL))
) STRICT;

-- A pane names its newest task; this finds it, and the pane's earlier ones.
CREATE INDEX tasks_by_pane ON tasks (pane_id) WHERE pane_id IS NOT NULL;

-- Two open tasks make a pane ambiguous; this counts them without reading a pane's whole past.
CREATE INDEX open_tasks_by_pane ON tasks (pane_id)
    WHERE pane_id IS NOT NULL AND lifecycle IN ('submitted', 'working');

-- What the sweep must expire next.
CREATE INDEX open_tasks_by_deadline ON tasks (deadline)
    WHERE deadline IS NOT NULL AND lifecycle IN ('submitted', 'working');

-- The row that latches. `artifacts` is a JSON array of strings; `evidence` is JSON with every number as it was written.
CREATE TABLE results (
    -- Deferred, as a result is inserted before a task that is new in the same transaction.
    task_key    INTEGER PRIMARY KEY REFERENCES tasks (task_key) DEFERRABLE INITIALLY DEFERRED,
    status      TEXT    NOT NULL CHECK (status = 'completed' OR status = 'failed' OR status = 'rejected'),
    reported_at INTEGER NOT NULL,
    -- octet_length, not length: a summary may hold a NUL, at which length() would stop.
    summary     TEXT    NOT NULL CHECK (octet_length(summary) BETWEEN 1 AND 16384),
    artifacts   TEXT    NOT NULL,
    evidence    TEXT    NOT NULL CHECK (octet_length(evidence) BETWEEN 2 AND 262144)
) STRICT;

-- The outbox: one row for each change of a task, in commit order. It is thin. Of a task only these columns ever change, and a
-- result or a reason never changes once it is there, so the task as of a revision is this row over the task's own:
--   * it has its result exactly if `lifecycle` is a reported status here,
--   * it has its reason exactly if `lifecycle` is 'canceled' here,
--   * a reported status without a verdict is the revision that accepted the report, the only one with a result event.
-- Published rows may be deleted, but never the newest one: `seq` must not be given twice.
CREATE TABLE revisions (
    seq         INTEGER PRIMARY KEY,
    task_key    INTEGER NOT NULL REFERENCES tasks (task_key),
    revision    INTEGER NOT NULL CHECK (revision >= 1),
    lifecycle   TEXT    NOT NULL CHECK (
        lifecycle = 'submitted' OR lifecycle = 'working' OR lifecycle = 'completed' OR lifecycle = 'failed'
        OR lifecycle = 'rejected' OR lifecycle = 'canceled' OR lifecycle = 'expired'),
    updated_at  INTEGER NOT NULL,
    verdict     TEXT    CHECK (verdict = 'approved' OR verdict = 'rework' OR verdict = 'blocked'),
    note        TEXT,
    reviewer    TEXT,
    reviewed_at INTEGER
) STRICT;

CREATE TRIGGER results_never_change BEFORE UPDATE ON results
BEGIN
    SELECT RAISE(ABORT, 'a result is written once and never changed');
END;

CREATE TRIGGER results_never_go BEFORE DELETE ON results
BEGIN
    SELECT RAISE(ABORT, 'a result is written once and never removed');
END;

-- REPLACE deletes without firing the trigger above (unless recursive_triggers is on), so a second insert is refused here.
CREATE TRIGGER results_latch BEFORE INSERT ON results
WHEN EXISTS (SELECT 1 FROM results WHERE task_key = NEW.task_key)
BEGIN
    SELECT RAISE(ABORT, 'the task has its result');
END;

-- The same for tasks: without them a program that leaves foreign keys off, as SQLite does by default, could have a task
-- begin anew.
CREATE TRIGGER tasks_never_go BEFORE DELETE ON tasks
BEGIN
    SELECT RAISE(ABORT, 'a task is never removed');
END;

CREATE TRIGGER tasks_are_made_once BEFORE INSERT ON tasks
WHEN EXISTS (SELECT 1 FROM tasks WHERE task_key = NEW.task_key OR task_id = NEW.task_id)
BEGIN
    SELECT RAISE(ABORT, 'a task of that ID or key exists');
END;

CREATE TRIGGER tasks_begin_with_their_result BEFORE INSERT ON tasks
WHEN (NEW.lifecycle = 'completed' OR NEW.lifecycle = 'failed' OR NEW.lifecycle = 'rejected')
 AND NOT EXISTS (SELECT 1 FROM results WHERE task_key = NEW.task_key AND status = NEW.lifecycle)
BEGIN
    SELECT RAISE(ABORT, 'a reported lifecycle needs the result that says so');
END;

CREATE TRIGGER tasks_end_once BEFORE UPDATE OF lifecycle ON tasks
WHEN NEW.lifecycle <> OLD.lifecycle AND OLD.lifecycle NOT IN ('submitted', 'working')
BEGIN
    SELECT RAISE(ABORT, 'nothing leaves a terminal state');
END;

CREATE TRIGGER tasks_end_with_their_result BEFORE UPDATE OF lifecycle ON tasks
WHEN (NEW.lifecycle = 'completed' OR NEW.lifecycle = 'failed' OR NEW.lifecycle = 'rejected')
 AND NOT EXISTS (SELECT 1 FROM results WHERE task_key = NEW.task_key AND status = NEW.lifecycle)
BEGIN
    SELECT RAISE(ABORT, 'a reported lifecycle needs the result that says so');
END;

CREATE TRIGGER tasks_move_forward BEFORE UPDATE ON tasks
WHEN NEW.revision <= OLD.revision OR NEW.updated_at < OLD.updated_at
BEGIN
    SELECT RAISE(ABORT, 'a task moves forward: a higher revision, and never an earlier time');
END;

CREATE TRIGGER tasks_keep_what_they_are BEFORE UPDATE ON tasks
WHEN NEW.task_key <> OLD.task_key OR NEW.task_id <> OLD.task_id OR NEW.pane_id IS NOT OLD.pane_id OR NEW.title <> OLD.title
  OR NEW.metadata IS NOT OLD.metadata OR NEW.deadline IS NOT OLD.deadline OR NEW.created_at <> OLD.created_at
BEGIN
    SELECT RAISE(ABORT, 'what a task was created with does not change');
END;
