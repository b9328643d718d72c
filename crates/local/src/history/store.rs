//! The SQLite file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params};

use super::file::{self, Access};
use super::{Entry, HistoryError, Key, Record};

/// Layouts, oldest first: step `n` leads from version `n` to `n + 1`. Never change a step that was
/// released; add one.
const MIGRATIONS: &[&str] = &["
    CREATE TABLE result (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        program TEXT NOT NULL,
        shape TEXT NOT NULL,
        machine TEXT NOT NULL,
        size_class INTEGER NOT NULL,
        load_class INTEGER NOT NULL,
        objective TEXT NOT NULL,
        changed_unix_s INTEGER NOT NULL,
        record TEXT NOT NULL,
        UNIQUE (program, shape, machine, objective, size_class, load_class)
    ) STRICT;
    CREATE INDEX result_by_age ON result (changed_unix_s);
"];
/// Newest layout that is known here.
#[allow(clippy::cast_possible_wrap)] // A handful.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;
/// `corw` in the file's header: tells our files from other programs'.
const APPLICATION_ID: i64 = 0x636f_7277;

/// A recall stands between the user and the start of a program: others are not waited for.
const READ_PATIENCE: Duration = Duration::from_millis(50);
/// A change comes after the run.
const WRITE_PATIENCE: Duration = Duration::from_secs(2);
/// Results kept; the oldest go first. About 2 kB each.
const MOST_RESULTS: i64 = 4000;
/// Results that [`History::similar`] returns at most.
const MOST_SIMILAR: u32 = 16;

const COLUMNS: &str = "id, program, shape, machine, size_class, load_class, objective, record";

/// What is to be forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forget {
    /// One result.
    Id(i64),
    /// All results of a program or script, given by path or by file name.
    Program(PathBuf),
    /// Everything.
    All,
}

/// All that is kept.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The results, newest first.
    pub entries: Vec<Entry>,
    /// Numbers of those that cannot be read.
    pub unreadable: Vec<i64>,
}

/// An open history.
#[derive(Debug)]
pub struct History {
    path: PathBuf,
    connection: Connection,
    access: Access,
    /// Which file was opened: the path may lead to another one by now.
    identity: Option<(u64, u64)>,
    notice: Option<HistoryError>,
}

impl History {
    /// Opens the history at `path`, and makes it where there is none. A damaged file is moved aside
    /// ([`History::notice`] says so). One that may only be read can still be recalled from. Costs
    /// about 1 ms.
    ///
    /// # Errors
    /// Any [`HistoryError`] but `Record`; none is a reason not to run the program.
    pub fn open(path: &Path) -> Result<Self, HistoryError> {
        match Self::open_once(path) {
            Err(damaged @ HistoryError::Corrupt { .. }) => {
                let mut history = Self::open_once(path)?;
                // Where another process has moved it, that one tells.
                let mine = matches!(
                    &damaged,
                    HistoryError::Corrupt {
                        moved_to: Some(_),
                        ..
                    }
                );
                history.notice = mine.then_some(damaged);
                Ok(history)
            }
            other => other,
        }
    }

    fn open_once(path: &Path) -> Result<Self, HistoryError> {
        let identity = file::identity(path);
        let (connection, access) = file::connect(path)?;
        let mut history = Self {
            path: path.to_owned(),
            connection,
            access,
            identity: identity.or_else(|| file::identity(path)),
            notice: None,
        };
        history.prepare()?;
        Ok(history)
    }

    /// What the user should be told once, if anything.
    #[must_use]
    pub fn notice(&self) -> Option<&HistoryError> {
        self.notice.as_ref()
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The result for exactly this key. Costs a fraction of a millisecond.
    ///
    /// # Errors
    /// `Record` where the result is there but unreadable; else as SQLite fails.
    pub fn recall(&self, key: &Key) -> Result<Option<Record>, HistoryError> {
        self.patience(READ_PATIENCE)?;
        let found = RawEntry::of_key(&self.connection, key).map_err(|e| self.failed(&e))?;
        found
            .map(|raw| raw.parse().map(|entry| entry.record))
            .transpose()
    }

    /// Results of the same program, shape and machine under another size of input, load or objective:
    /// priors for a search. Nearest first: same objective, then nearest load, then nearest size, then
    /// newest. Unreadable ones are left out.
    ///
    /// # Errors
    /// As SQLite fails.
    pub fn similar(&self, key: &Key) -> Result<Vec<Entry>, HistoryError> {
        self.patience(READ_PATIENCE)?;
        let sql = format!(
            "SELECT {COLUMNS} FROM result WHERE program = ?1 AND shape = ?2 AND machine = ?3 \
             ORDER BY objective <> ?4, abs(load_class - ?5), abs(size_class - ?6), changed_unix_s DESC \
             LIMIT ?7"
        );
        let rows = self.connection.prepare(&sql).and_then(|mut statement| {
            let key = params![
                json(&key.program),
                key.shape,
                json(&key.machine),
                key.objective,
                key.load_class,
                key.size_class,
                MOST_SIMILAR + 1
            ];
            statement
                .query_map(key, RawEntry::read)?
                .collect::<Result<Vec<_>, _>>()
        });
        let rows = rows.map_err(|e| self.failed(&e))?;
        let entries = rows.into_iter().filter_map(|raw| raw.parse().ok());
        Ok(entries
            .filter(|entry| entry.key != *key)
            .take(MOST_SIMILAR as usize)
            .collect())
    }

    /// Keeps a result, in place of an older one with the same key; returns its number.
    ///
    /// # Errors
    /// As SQLite fails; the older result then stays.
    pub fn remember(&mut self, key: &Key, record: &Record) -> Result<i64, HistoryError> {
        self.change(|transaction| {
            let id = transaction.query_row(
                "INSERT INTO result (program, shape, machine, objective, size_class, load_class, \
                     changed_unix_s, record) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, unixepoch(), ?7) \
                 ON CONFLICT DO UPDATE SET changed_unix_s = excluded.changed_unix_s, record = excluded.record \
                 RETURNING id",
                params![
                    json(&key.program),
                    key.shape,
                    json(&key.machine),
                    key.objective,
                    key.size_class,
                    key.load_class,
                    json(record)
                ],
                |row| row.get(0),
            )?;
            transaction.execute(
                "DELETE FROM result WHERE id IN \
                 (SELECT id FROM result ORDER BY changed_unix_s DESC, id DESC LIMIT -1 OFFSET ?1)",
                [MOST_RESULTS],
            )?;
            Ok(id)
        })
    }

    /// Notes that a run used the result, and how long it took, in seconds. Says whether there was one.
    ///
    /// # Errors
    /// As SQLite fails.
    pub fn used(&mut self, key: &Key, wall_seconds: f64) -> Result<bool, HistoryError> {
        self.amend(key, |record| {
            record.uses = record.uses.saturating_add(1);
            record.last_wall_seconds = Some(wall_seconds);
        })
    }

    /// Changes the result as it is by now. Says whether there was one that can be read.
    ///
    /// # Errors
    /// As SQLite fails; nothing is changed then.
    pub fn amend(
        &mut self,
        key: &Key,
        change: impl FnOnce(&mut Record),
    ) -> Result<bool, HistoryError> {
        self.change(|transaction| {
            let Some(found) = RawEntry::of_key(transaction, key)? else {
                return Ok(false);
            };
            let Ok(mut record) = serde_json::from_str::<Record>(&found.record) else {
                return Ok(false);
            };
            change(&mut record);
            transaction.execute(
                "UPDATE result SET changed_unix_s = unixepoch(), record = ?2 WHERE id = ?1",
                params![found.id, json(&record)],
            )?;
            Ok(true)
        })
    }

    /// All results, newest first.
    ///
    /// # Errors
    /// As SQLite fails.
    pub fn list(&self) -> Result<Listing, HistoryError> {
        self.patience(WRITE_PATIENCE)?;
        let sql = format!("SELECT {COLUMNS} FROM result ORDER BY changed_unix_s DESC, id DESC");
        let rows = self.connection.prepare(&sql).and_then(|mut statement| {
            statement
                .query_map([], RawEntry::read)?
                .collect::<Result<Vec<_>, _>>()
        });
        let mut listing = Listing::default();
        for raw in rows.map_err(|e| self.failed(&e))? {
            let id = raw.id;
            match raw.parse() {
                Ok(entry) => listing.entries.push(entry),
                Err(_) => listing.unreadable.push(id),
            }
        }
        Ok(listing)
    }

    /// One result by its number.
    ///
    /// # Errors
    /// `Record` where it is unreadable; else as SQLite fails.
    pub fn show(&self, id: i64) -> Result<Option<Entry>, HistoryError> {
        self.patience(WRITE_PATIENCE)?;
        let sql = format!("SELECT {COLUMNS} FROM result WHERE id = ?1");
        let raw = self
            .connection
            .query_row(&sql, [id], RawEntry::read)
            .optional();
        raw.map_err(|e| self.failed(&e))?
            .map(RawEntry::parse)
            .transpose()
    }

    /// Forgets results; says how many.
    ///
    /// # Errors
    /// As SQLite fails; nothing is forgotten then.
    pub fn forget(&mut self, what: &Forget) -> Result<usize, HistoryError> {
        let ids: Vec<i64> = match what {
            Forget::All => return self.change(|t| t.execute("DELETE FROM result", [])),
            Forget::Id(id) => vec![*id],
            Forget::Program(program) => {
                let listing = self.list()?;
                listing
                    .entries
                    .iter()
                    .filter(|e| is_of(&e.key, program))
                    .map(|e| e.id)
                    .collect()
            }
        };
        self.change(|transaction| {
            let mut count = 0;
            for id in ids {
                count += transaction.execute("DELETE FROM result WHERE id = ?1", [id])?;
            }
            Ok(count)
        })
    }

    /// Makes or updates the layout. The usual case, a file of this version, takes two reads.
    fn prepare(&mut self) -> Result<(), HistoryError> {
        self.patience(READ_PATIENCE)?;
        // Safe against corruption at power loss in WAL mode, and spares a sync for each change.
        let normal = self.connection.pragma_update(None, "synchronous", "NORMAL");
        normal.map_err(|e| self.failed(&e))?;
        let version = self.version()?;
        if version == VERSION {
            return Ok(());
        }
        if version > VERSION {
            return Err(HistoryError::Newer {
                path: self.path.clone(),
                theirs: version,
                ours: VERSION,
            });
        }
        if self.access == Access::Read {
            return Err(HistoryError::ReadOnly {
                path: self.path.clone(),
            });
        }
        // One at a time: two processes that switch a new file to WAL at once get in each other's way.
        let _lock = file::lock(&self.path);
        self.patience(WRITE_PATIENCE)?;
        file::choose_journal(&self.connection, &self.path).map_err(|e| self.failed(&e))?;
        let path = self.path.clone();
        let foreign = self.change(|transaction| {
            let version: i64 =
                transaction.pragma_query_value(None, "user_version", |r| r.get(0))?;
            let tables: i64 =
                transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |r| r.get(0))?;
            if version == 0 && tables > 0 {
                return Ok(true);
            }
            for step in MIGRATIONS
                .iter()
                .skip(usize::try_from(version).unwrap_or(0))
            {
                transaction.execute_batch(step)?;
            }
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
            Ok(false)
        })?;
        if foreign {
            return Err(HistoryError::Open {
                path,
                why: "it is another program's database".into(),
            });
        }
        Ok(())
    }

    fn version(&self) -> Result<i64, HistoryError> {
        let read = |pragma| {
            self.connection
                .pragma_query_value(None, pragma, |row| row.get::<_, i64>(0))
        };
        let version = read("user_version").map_err(|e| self.failed(&e))?;
        let application = read("application_id").map_err(|e| self.failed(&e))?;
        if version != 0 && application != APPLICATION_ID {
            return Err(HistoryError::Open {
                path: self.path.clone(),
                why: "it is another program's database".into(),
            });
        }
        Ok(version)
    }

    fn change<T>(
        &mut self,
        work: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, HistoryError> {
        if self.access == Access::Read {
            return Err(HistoryError::ReadOnly {
                path: self.path.clone(),
            });
        }
        self.patience(WRITE_PATIENCE)?;
        let done = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .and_then(|transaction| {
                let value = work(&transaction)?;
                transaction.commit()?;
                Ok(value)
            });
        done.map_err(|e| self.failed(&e))
    }

    fn patience(&self, time: Duration) -> Result<(), HistoryError> {
        self.connection
            .busy_timeout(time)
            .map_err(|e| self.failed(&e))
    }

    fn failed(&self, error: &rusqlite::Error) -> HistoryError {
        let error = file::error(&self.path, error);
        if let HistoryError::Corrupt { path, .. } = error {
            // So that the next one that opens begins a new file.
            let moved_to = file::set_aside(&path, self.identity);
            return HistoryError::Corrupt { path, moved_to };
        }
        error
    }
}

struct RawEntry {
    id: i64,
    program: String,
    shape: String,
    machine: String,
    size_class: u32,
    load_class: u32,
    objective: String,
    record: String,
}

impl RawEntry {
    /// The row with exactly this key.
    fn of_key(connection: &Connection, key: &Key) -> rusqlite::Result<Option<Self>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM result WHERE program = ?1 AND shape = ?2 AND machine = ?3 \
             AND objective = ?4 AND size_class = ?5 AND load_class = ?6"
        );
        let key = params![
            json(&key.program),
            key.shape,
            json(&key.machine),
            key.objective,
            key.size_class,
            key.load_class
        ];
        connection.query_row(&sql, key, Self::read).optional()
    }

    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            program: row.get(1)?,
            shape: row.get(2)?,
            machine: row.get(3)?,
            size_class: row.get(4)?,
            load_class: row.get(5)?,
            objective: row.get(6)?,
            record: row.get(7)?,
        })
    }

    fn parse(self) -> Result<Entry, HistoryError> {
        let id = self.id;
        let bad = |e: serde_json::Error| HistoryError::Record {
            id,
            why: e.to_string(),
        };
        let key = Key {
            program: serde_json::from_str(&self.program).map_err(bad)?,
            shape: self.shape,
            size_class: self.size_class,
            machine: serde_json::from_str(&self.machine).map_err(bad)?,
            load_class: self.load_class,
            objective: self.objective,
        };
        Ok(Entry {
            id,
            key,
            record: serde_json::from_str(&self.record).map_err(bad)?,
        })
    }
}

/// Our own structs: strings, numbers and lists of them, which always have a JSON form.
fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn is_of(key: &Key, wanted: &Path) -> bool {
    let canonical = wanted.canonicalize().ok();
    let matches = |path: &Path| {
        Some(path) == canonical.as_deref()
            || path == wanted
            || (wanted.components().count() == 1 && path.file_name() == wanted.file_name())
    };
    matches(&key.program.path)
        || key
            .program
            .script
            .as_ref()
            .is_some_and(|s| matches(&s.path))
}
