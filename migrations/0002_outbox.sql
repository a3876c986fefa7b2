-- What may leave the outbox, and what can never leave it by itself.

-- Events that can never be published as they are: too large for the server or its stream. The cursor has passed them, so
-- that they hold up no others; they are here until somebody sends them again, and so is their revision.
CREATE TABLE parked_events (
    seq       INTEGER NOT NULL REFERENCES revisions (seq),
    -- Which event of the revision.
    kind      TEXT    NOT NULL CHECK (kind = 'result' OR kind = 'task'),
    reason    TEXT    NOT NULL CHECK (octet_length(reason) BETWEEN 1 AND 1024),
    parked_at INTEGER NOT NULL,
    PRIMARY KEY (seq, kind)
) STRICT, WITHOUT ROWID;

-- Published revisions go after a time. What is not published never goes; nor does the newest, whose `seq` must not be
-- given twice.
CREATE TRIGGER revisions_go_once_published BEFORE DELETE ON revisions
WHEN OLD.seq > (SELECT published_seq FROM ledger) OR OLD.seq = (SELECT max(seq) FROM revisions)
BEGIN
    SELECT RAISE(ABORT, 'a revision that is not published, or the newest, is never removed');
END;

CREATE TRIGGER cursor_moves_forward BEFORE UPDATE OF published_seq ON ledger
WHEN NEW.published_seq < OLD.published_seq
  OR NEW.published_seq > (SELECT coalesce(max(seq), 0) FROM revisions)
BEGIN
    SELECT RAISE(ABORT, 'the cursor moves forward, over revisions that are there');
END;
