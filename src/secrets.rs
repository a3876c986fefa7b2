//! What a secured NATS server and its users need: NKeys with the permissions of their roles, and a development CA for TLS
//! (docs/security.md). Made once, and kept by whatever is made later.
//!
//! Each part has a folder of its own, so that a container or a person is given that one and no other.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nkeys::KeyPair;

use crate::task::Timestamp;
use crate::wire::Subjects;
use crate::wire::limits::TASK_ID_BYTES;

use roles::User;

mod certificates;
mod roles;

pub use roles::Role;

/// What the private inbox of a user begins with; the rest is its name.
pub const INBOX_PREFIX: &str = "_INBOX";

/// The user whose key is another one whenever something else has changed: whoever can log in with it knows that the server has
/// read all of it.
pub const RELOAD_CHECK: &str = "reload-check";

/// Names that no client can be given.
const TAKEN: [&str; 4] = ["service", "coordinator", "observer", RELOAD_CHECK];

/// The most characters of a user's name.
const NAME_CHARS: usize = 64;

/// Why it could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    /// A file or folder.
    #[error("{path}: it cannot be {action}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A file that is there is not what it must be.
    #[error("{path} is {what}; remove it to have it made anew")]
    Unfit {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A name that no user can have.
    #[error(
        "{0:?} is no name for a client: use up to {NAME_CHARS} of A-Z a-z 0-9 _ -, and none of service, coordinator, observer and \
         {RELOAD_CHECK}"
    )]
    Name(String),
    /// What a worker shall be narrowed to is no task.
    #[error(
        "{0:?} is no task ID, which a worker is narrowed to by NAME=TASK_ID: use up to {limit} of A-Z a-z 0-9 _ -",
        limit = TASK_ID_BYTES
    )]
    TaskId(String),
    /// A key or certificate.
    #[error("no {what} could be made: {why}")]
    Make {
        /// Which.
        what: &'static str,
        /// Why not.
        why: String,
    },
}

/// The first coordinator, and what the file of the role of a further one says.
const COORDINATOR: &str = "coordinator";

/// A worker, which may be narrowed to one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewWorker {
    name: String,
    task_id: Option<String>,
}

impl NewWorker {
    /// A worker of this name; with a task ID it may report on that task and do nothing else.
    ///
    /// # Errors
    /// [`SecretsError::Name`] for a name that is no single subject token or belongs to another role,
    /// [`SecretsError::TaskId`] for what is no task ID.
    pub fn new(name: &str, task_id: Option<&str>) -> Result<Self, SecretsError> {
        check_name(name)?;
        match task_id {
            Some(id) if !is_word(id, TASK_ID_BYTES) => Err(SecretsError::TaskId(id.to_owned())),
            task_id => Ok(Self {
                name: name.to_owned(),
                task_id: task_id.map(str::to_owned),
            }),
        }
    }
}

/// Whether a client may have this name, which becomes part of subjects, file names and the server's configuration.
fn check_name(name: &str) -> Result<(), SecretsError> {
    match TAKEN.contains(&name) || !is_word(name, NAME_CHARS) {
        true => Err(SecretsError::Name(name.to_owned())),
        false => Ok(()),
    }
}

fn is_word(text: &str, chars_max: usize) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    (1..=chars_max).contains(&text.len()) && text.chars().all(plain)
}

/// What was done.
#[derive(Debug, Default)]
pub struct Made {
    /// Files that were made; the others were there and are as they were.
    pub files: Vec<PathBuf>,
    /// Users of the server, by name, with what each may do.
    pub users: BTreeMap<String, Role>,
}

/// A folder that secrets are made in.
struct Folder<'a> {
    root: &'a Path,
    made: Made,
}

/// Makes what is missing under `root`: `ca/`, `nats/`, `service/` and `clients/`. `hosts` are the names and addresses that
/// clients know the server by; `workers` and further `coordinators` are added to those that are there. A certificate of the server that was made here is
/// made anew for a host that it does not name, and some time before it ends.
///
/// # Errors
/// [`SecretsError`]; what was made by then stays, and is kept the next time.
pub fn make(
    root: &Path,
    subjects: &Subjects,
    hosts: &[String],
    workers: &[NewWorker],
    coordinators: &[String],
    now: Timestamp,
) -> Result<Made, SecretsError> {
    let mut folder = Folder {
        root,
        made: Made::default(),
    };
    for name in ["", "ca", "nats", "service", "clients"] {
        folder.make_folder(name)?;
    }
    folder.certificates(hosts, now)?;
    for worker in workers {
        if let Some(task_id) = &worker.task_id {
            let file = format!("clients/{}.task", worker.name);
            if folder
                .read_or_make(&file, || Ok(format!("{task_id}\n")))?
                .trim()
                != task_id
            {
                return Err(folder.unfit(&file, "of another task".to_owned()));
            }
        }
        folder.seed(&format!("clients/{}.nk", worker.name))?;
    }
    for name in coordinators {
        check_name(name)?;
        let file = format!("clients/{name}.role");
        let said = folder.read_or_make(&file, || Ok(format!("{COORDINATOR}\n")))?;
        if said.trim() != COORDINATOR || folder.read(&format!("clients/{name}.task"))?.is_some() {
            return Err(folder.unfit(&file, "of another role".to_owned()));
        }
        folder.seed(&format!("clients/{name}.nk"))?;
    }
    for name in [COORDINATOR, "observer", "worker"] {
        folder.seed(&format!("clients/{name}.nk"))?;
    }
    folder.seed("service/service.nk")?;
    folder.users(subjects)?;
    Ok(folder.made)
}

impl Folder<'_> {
    fn make_folder(&self, name: &str) -> Result<(), SecretsError> {
        let path = self.root.join(name);
        let mut builder = fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o750).create(&path);
        made.map_err(|source| SecretsError::File {
            path,
            action: "made",
            source,
        })
    }

    fn read(&self, file: &str) -> Result<Option<String>, SecretsError> {
        let path = self.root.join(file);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(SecretsError::File {
                path,
                action: "read",
                source,
            }),
        }
    }

    /// Writes a file that only its owner can read, in one step, so that one that is there is whole.
    fn write(&mut self, file: &str, text: &str) -> Result<(), SecretsError> {
        let path = self.root.join(file);
        let part = self.root.join(format!("{file}.part"));
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let written = options
            .open(&part)
            .and_then(|mut to| {
                to.write_all(text.as_bytes())?;
                to.sync_all()
            })
            .and_then(|()| fs::rename(&part, &path));
        written.map_err(|source| SecretsError::File {
            path: path.clone(),
            action: "written",
            source,
        })?;
        self.made.files.push(path);
        Ok(())
    }

    fn remove(&self, file: &str) -> Result<(), SecretsError> {
        let path = self.root.join(file);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(SecretsError::File {
                path,
                action: "removed",
                source,
            }),
            _ => Ok(()),
        }
    }

    fn read_or_make(
        &mut self,
        file: &str,
        make: impl FnOnce() -> Result<String, SecretsError>,
    ) -> Result<String, SecretsError> {
        if let Some(text) = self.read(file)? {
            return Ok(text);
        }
        let text = make()?;
        self.write(file, &text)?;
        Ok(text)
    }

    fn unfit(&self, file: &str, what: String) -> SecretsError {
        SecretsError::Unfit {
            path: self.root.join(file),
            what,
        }
    }

    /// The public key of the seed in a file.
    fn seed(&mut self, file: &str) -> Result<String, SecretsError> {
        let seed = self.read_or_make(file, || {
            let seed = KeyPair::new_user().seed();
            let seed = seed.map_err(|error| SecretsError::Make {
                what: "NKey",
                why: error.to_string(),
            })?;
            Ok(seed + "\n")
        })?;
        let pair = KeyPair::from_seed(seed.trim());
        Ok(pair
            .map_err(|_| self.unfit(file, "no seed of an NKey".to_owned()))?
            .public_key())
    }

    /// Writes the accounts of the server, with their users and what each may do, from the seeds that are there.
    fn users(&mut self, subjects: &Subjects) -> Result<(), SecretsError> {
        let users = self.find_users()?;
        for User { name, role, .. } in &users {
            if *role != Role::ReloadCheck {
                self.made.users.insert(name.clone(), role.clone());
            }
        }
        // So that a certificate that was put there by hand is noticed too.
        let certificate = self.read("nats/server.pem")?.unwrap_or_default();
        let certificate = certificates::digest(&certificate);
        let is_same = users.iter().any(|user| user.role == Role::ReloadCheck)
            && self.read("nats/accounts.conf")?.as_deref()
                == Some(&accounts(&users, subjects, &certificate));
        if is_same {
            return Ok(());
        }
        let check = format!("clients/{RELOAD_CHECK}.nk");
        self.remove(&check)?;
        self.seed(&check)?;
        let text = accounts(&self.find_users()?, subjects, &certificate);
        self.write("nats/accounts.conf", &text)
    }

    /// The users of the seeds that are there.
    fn find_users(&mut self) -> Result<Vec<User>, SecretsError> {
        let service = self.seed("service/service.nk")?;
        let mut users = vec![User {
            name: "service".to_owned(),
            key: service,
            role: Role::Service,
        }];
        for name in self.client_names()? {
            let key = self.seed(&format!("clients/{name}.nk"))?;
            let role = self.role(&name)?;
            users.push(User { name, key, role });
        }
        Ok(users)
    }

    /// What a client is there for, by its name and the files beside its seed.
    fn role(&self, name: &str) -> Result<Role, SecretsError> {
        match name {
            COORDINATOR => return Ok(Role::Coordinator),
            "observer" => return Ok(Role::Observer),
            RELOAD_CHECK => return Ok(Role::ReloadCheck),
            _ => {}
        }
        let file = format!("clients/{name}.role");
        match self.read(&file)?.as_deref().map(str::trim) {
            None => self.worker(name),
            Some(COORDINATOR) if check_name(name).is_ok() => Ok(Role::Coordinator),
            Some(_) => Err(self.unfit(&file, "no role that a client can have".to_owned())),
        }
    }

    /// What a worker may do. Its files may have been made by hand, and what they say becomes part of the server's
    /// configuration.
    fn worker(&self, name: &str) -> Result<Role, SecretsError> {
        let file = format!("clients/{name}.task");
        let task_id = self.read(&file)?;
        match NewWorker::new(name, task_id.as_deref().map(str::trim)) {
            Ok(NewWorker { task_id, .. }) => Ok(task_id.map_or(Role::Worker, Role::WorkerOf)),
            Err(_) if NewWorker::new(name, None).is_ok() => {
                Err(self.unfit(&file, "no task ID".to_owned()))
            }
            Err(_) => Err(self.unfit(
                &format!("clients/{name}.nk"),
                "the seed of a name that no worker can have".to_owned(),
            )),
        }
    }

    /// The names of all clients that have a seed, in order.
    fn client_names(&self) -> Result<Vec<String>, SecretsError> {
        let path = self.root.join("clients");
        let names = fs::read_dir(&path).and_then(|entries| {
            let mut names = Vec::new();
            for entry in entries {
                let file = entry?.file_name();
                names.extend(
                    file.to_str()
                        .and_then(|name| name.strip_suffix(".nk"))
                        .map(str::to_owned),
                );
            }
            Ok(names)
        });
        let mut names = names.map_err(|source| SecretsError::File {
            path,
            action: "read",
            source,
        })?;
        names.sort();
        Ok(names)
    }
}

/// The accounts as the server's configuration includes them.
fn accounts(users: &[User], subjects: &Subjects, certificate: &str) -> String {
    let head = "# Made by `tasklatch secrets make`, and made anew by it: edit nothing here.";
    let accounts = roles::accounts(users, subjects);
    format!("{head}\n# For the certificate {certificate}.\n{accounts}")
}

/// The clients that have a seed under `root`, by name, with what each may do.
///
/// # Errors
/// [`SecretsError`] for a file that cannot be read, or is not what it must be.
pub fn clients(root: &Path) -> Result<BTreeMap<String, Role>, SecretsError> {
    let folder = Folder {
        root,
        made: Made::default(),
    };
    let names = folder.client_names()?.into_iter();
    names
        .map(|name| Ok((name.clone(), folder.role(&name)?)))
        .collect()
}
