-- What the writer writes through, on its own connection. Each row of one of these views is one change of a task, with all
-- that belongs to it; so a batch is one statement, which is a transaction by itself if it is the only one. That matters:
-- each statement more is a trip to the connection's thread and back, about 80 µs.

-- A new task. Rows without a `seq` are padding.
CREATE TEMP VIEW creations (seq, task_key, task_id, pane_id, deadline, created_at, title, metadata)
    AS SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL;

CREATE TEMP TRIGGER create_task INSTEAD OF INSERT ON creations WHEN NEW.seq IS NOT NULL
BEGIN
    INSERT INTO tasks (task_key, lifecycle, revision, updated_at, task_id, pane_id, deadline, created_at, title, metadata)
    VALUES (NEW.task_key, 'submitted', 1, NEW.created_at, NEW.task_id, NEW.pane_id, NEW.deadline, NEW.created_at,
            NEW.title, NEW.metadata);
    INSERT INTO revisions (seq, task_key, revision, lifecycle, updated_at)
    VALUES (NEW.seq, NEW.task_key, 1, 'submitted', NEW.created_at);
END;

-- The report that brings a task its result.
CREATE TEMP VIEW reports (seq, task_key, revision, status, reported_at, summary, artifacts, evidence)
    AS SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL;

CREATE TEMP TRIGGER report_on_task INSTEAD OF INSERT ON reports WHEN NEW.seq IS NOT NULL
BEGIN
    -- First, as a task is only given a reported lifecycle if the result that says so is there. A result that is there
    -- already refuses this one.
    INSERT INTO results (task_key, status, reported_at, summary, artifacts, evidence)
    VALUES (NEW.task_key, NEW.status, NEW.reported_at, NEW.summary, NEW.artifacts, NEW.evidence);

    -- A task that is not as it was decided on is not written.
    UPDATE tasks SET lifecycle = NEW.status, revision = NEW.revision, updated_at = NEW.reported_at
    WHERE task_key = NEW.task_key AND revision = NEW.revision - 1;
    SELECT RAISE(ABORT, 'the task is not as it was when this was decided') WHERE changes() <> 1;

    INSERT INTO revisions (seq, task_key, revision, lifecycle, updated_at)
    VALUES (NEW.seq, NEW.task_key, NEW.revision, NEW.status, NEW.reported_at);
END;

-- Any other change of a task that is there.
CREATE TEMP VIEW changes (seq, task_key, revision, lifecycle, updated_at, reason, verdict, note, reviewer, reviewed_at)
    AS SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL;

CREATE TEMP TRIGGER change_task INSTEAD OF INSERT ON changes WHEN NEW.seq IS NOT NULL
BEGIN
    UPDATE tasks
    SET lifecycle = NEW.lifecycle, revision = NEW.revision, updated_at = NEW.updated_at, reason = NEW.reason,
        verdict = NEW.verdict, note = NEW.note, reviewer = NEW.reviewer, reviewed_at = NEW.reviewed_at
    WHERE task_key = NEW.task_key AND revision = NEW.revision - 1;
    SELECT RAISE(ABORT, 'the task is not as it was when this was decided') WHERE changes() <> 1;

    INSERT INTO revisions (seq, task_key, revision, lifecycle, updated_at, verdict, note, reviewer, reviewed_at)
    VALUES (NEW.seq, NEW.task_key, NEW.revision, NEW.lifecycle, NEW.updated_at, NEW.verdict, NEW.note, NEW.reviewer,
            NEW.reviewed_at);
END;

-- The same as `reports` where one of a batch belongs to a trace: those that do not pay nothing as long as none does.
CREATE TEMP VIEW traced_reports (seq, task_key, revision, status, reported_at, summary, artifacts, evidence, traceparent, tracestate)
    AS SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL;

CREATE TEMP TRIGGER report_with_trace INSTEAD OF INSERT ON traced_reports WHEN NEW.seq IS NOT NULL
BEGIN
    INSERT INTO reports (seq, task_key, revision, status, reported_at, summary, artifacts, evidence)
    VALUES (NEW.seq, NEW.task_key, NEW.revision, NEW.status, NEW.reported_at, NEW.summary, NEW.artifacts, NEW.evidence);
    INSERT INTO revision_traces (seq, traceparent, tracestate)
    SELECT NEW.seq, NEW.traceparent, NEW.tracestate WHERE NEW.traceparent IS NOT NULL;
END;
