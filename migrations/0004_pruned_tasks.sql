-- Tasks that an operator has let go (`tasklatch ledger prune`).

-- What is left of such a task: so that its ID is never taken for one that was never there, and nothing else latches under it.
CREATE TABLE pruned_tasks (
    task_id   TEXT    NOT NULL PRIMARY KEY CHECK (octet_length(task_id) BETWEEN 1 AND 128),
    pruned_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The only door by which a task and its result leave: what is left of the task is written first, in the same transaction.
CREATE TRIGGER only_what_has_ended_is_pruned BEFORE INSERT ON pruned_tasks
WHEN NOT EXISTS (SELECT 1 FROM tasks WHERE task_id = NEW.task_id AND lifecycle NOT IN ('submitted', 'working'))
BEGIN
    SELECT RAISE(ABORT, 'only a task that has ended is pruned');
END;

CREATE TRIGGER pruned_tasks_never_change BEFORE UPDATE ON pruned_tasks
BEGIN
    SELECT RAISE(ABORT, 'what is left of a pruned task never changes');
END;

CREATE TRIGGER pruned_tasks_never_go BEFORE DELETE ON pruned_tasks
BEGIN
    SELECT RAISE(ABORT, 'what is left of a pruned task is never removed');
END;

CREATE TRIGGER pruned_tasks_are_not_made_again BEFORE INSERT ON tasks
WHEN EXISTS (SELECT 1 FROM pruned_tasks WHERE task_id = NEW.task_id)
BEGIN
    SELECT RAISE(ABORT, 'a task of that ID was pruned');
END;

DROP TRIGGER results_never_go;

CREATE TRIGGER results_never_go BEFORE DELETE ON results
WHEN NOT EXISTS (SELECT 1 FROM tasks JOIN pruned_tasks USING (task_id) WHERE tasks.task_key = OLD.task_key)
BEGIN
    SELECT RAISE(ABORT, 'a result is written once and never removed');
END;

DROP TRIGGER tasks_never_go;

CREATE TRIGGER tasks_never_go BEFORE DELETE ON tasks
WHEN NOT EXISTS (SELECT 1 FROM pruned_tasks WHERE task_id = OLD.task_id)
  OR EXISTS (SELECT 1 FROM results WHERE task_key = OLD.task_key)
BEGIN
    SELECT RAISE(ABORT, 'a task is never removed');
END;
