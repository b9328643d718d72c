//! `probes-harmless`: programs that delete, overwrite, append, rename, write to other file systems,
//! knock at sockets, daemonise and signal their group are tuned; afterwards files, processes and
//! listeners must be as before.
//!
//! Each program is first run plainly in a folder of its own, which must change something: a probe
//! that found nothing to harm would prove nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::experiment::{Bar, Context, Report, Table};
use crate::inputs::{Kind, input};

/// A program that does harm, as a shell script. `$1` is the number of threads, `$OTHER` a folder on
/// another file system, `$NAME` a word of this case's own.
struct Harm {
    name: &'static str,
    script: &'static str,
    /// Its harm shows in files or at listeners when it is run plainly; the others would also harm
    /// the experiment, and are not run plainly.
    shows: bool,
}

/// Work that has the asked number of threads, after the harm is done.
const WORK: &str = "\npigz -p \"$1\" -c -k big";

const HARMS: &[Harm] = &[
    Harm {
        name: "pbzip2 deletes its input",
        script: "exec pbzip2 -p\"$1\" big",
        shows: true,
    },
    Harm {
        name: "delete",
        script: "rm a; rm -r sub",
        shows: true,
    },
    Harm {
        name: "overwrite in place",
        script: "echo new > a; dd if=/dev/zero of=b bs=1 count=2 conv=notrunc 2>&1",
        shows: true,
    },
    Harm {
        name: "append",
        script: "echo more >> a; echo more >> sub/deep",
        shows: true,
    },
    Harm {
        name: "rename",
        script: "mv a c; mv sub other",
        shows: true,
    },
    Harm {
        name: "change modes and times",
        script: "chmod 700 a; touch -d 2001-01-01 b",
        shows: true,
    },
    Harm {
        name: "write to other file systems",
        script: "echo x > \"$OTHER/new\"; echo y >> \"$OTHER/old\"",
        shows: true,
    },
    Harm {
        name: "make sockets and FIFOs",
        script: "mkfifo fifo2; perl -MIO::Socket::UNIX -e \
                 'IO::Socket::UNIX->new(Local=>\"made\", Listen=>1)'",
        shows: true,
    },
    Harm {
        name: "knock at listeners",
        script: "perl -MIO::Socket::UNIX -MIO::Socket::INET -e \
                 'IO::Socket::UNIX->new(Peer=>\"socket\"); \
                  IO::Socket::UNIX->new(Peer=>\"\\0$ENV{NAME}\"); \
                  IO::Socket::INET->new(\"127.0.0.1:$ENV{PORT}\")'",
        shows: true,
    },
    Harm {
        name: "daemonise",
        script: "setsid sh -c 'sleep 1000 & sleep 1000 &' &",
        shows: false,
    },
    Harm {
        name: "signal its group and everyone",
        script: "trap '' TERM; kill -TERM 0; kill -TERM -1",
        shows: false,
    },
];

/// Runs the experiment.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "probes-harmless",
        "files, listeners and processes before `corewise tune` against after it",
        "each `corewise tune` in the experiment's session",
    );
    let lab = Lab::new(context)?;
    let mut table = Table::new(
        "what tuning changed",
        &[
            "program",
            "user",
            "probes",
            "plain",
            "files",
            "processes",
            "knocks",
        ],
    );
    let mut worst = Seen::default();
    let mut idle_harms = 0;
    let mut without_probe = 0;
    for who in lab.who() {
        for harm in HARMS {
            context.say(format!("{} ({})", harm.name, who.name()));
            let plain = if harm.shows {
                lab.plainly(harm, who)?
            } else {
                0
            };
            idle_harms += usize::from(harm.shows && plain == 0);
            let (probes, seen) = lab.tuned(harm, who)?;
            without_probe += usize::from(probes == 0);
            table.row([
                harm.name.to_owned(),
                who.name().to_owned(),
                probes.to_string(),
                if harm.shows {
                    plain.to_string()
                } else {
                    "-".into()
                },
                seen.files.to_string(),
                seen.processes.to_string(),
                seen.knocks.to_string(),
            ]);
            worst.add(&seen);
        }
        for signal in ["INT", "TERM", "KILL"] {
            context.say(format!("corewise killed by SIG{signal} ({})", who.name()));
            let seen = lab.cut_short(signal, who)?;
            table.row([
                format!("corewise killed by SIG{signal}"),
                who.name().to_owned(),
                "-".into(),
                "-".into(),
                seen.files.to_string(),
                seen.processes.to_string(),
                seen.knocks.to_string(),
            ]);
            worst.add(&seen);
        }
    }
    for (name, value) in [
        ("files changed", worst.files),
        ("processes left or lost", worst.processes),
        ("connections from probes", worst.knocks),
        ("programs tuned without a probe", without_probe),
        (
            "harmful programs that changed nothing when run plainly",
            idle_harms,
        ),
    ] {
        report.figure(name, value as f64);
        report
            .bars
            .push(Bar::at_most(format!("{name} (at most)"), value as f64, 0.0));
    }
    report.tables.push(table);
    if lab.who().len() == 1 {
        report.note("only one user was tried: root can also try an ordinary one");
    }
    Ok(report)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Me,
    Nobody,
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Self::Me => "this one",
            Self::Nobody => "nobody",
        }
    }

    /// A command of this user's.
    fn command(self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        const NOBODY: u32 = 65534;
        let mut command = Command::new(program);
        if self == Self::Nobody {
            command.uid(NOBODY).gid(NOBODY).env("HOME", "/nonexistent");
        }
        command
    }
}

/// What had changed.
#[derive(Default)]
struct Seen {
    files: usize,
    processes: usize,
    knocks: usize,
}

impl Seen {
    fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.processes += other.processes;
        self.knocks += other.knocks;
    }
}

struct Lab {
    corewise: PathBuf,
    input: PathBuf,
    /// Keeps the copy of the command that every user can execute.
    _folder: tempfile::TempDir,
}

/// One case's surroundings.
struct Stage {
    folder: tempfile::TempDir,
    other: tempfile::TempDir,
    path_listener: UnixListener,
    abstract_listener: UnixListener,
    tcp_listener: std::net::TcpListener,
    name: String,
    bystander: Child,
}

impl Lab {
    fn new(context: &Context) -> Result<Self> {
        let folder = open_folder(None)?;
        let corewise = folder.path().join("corewise");
        std::fs::copy(context.corewise()?, &corewise).context("could not copy corewise")?;
        Ok(Self {
            corewise,
            input: input(&context.inputs, Kind::Text, 1)?,
            _folder: folder,
        })
    }

    fn who(&self) -> Vec<Who> {
        if rustix::process::geteuid().is_root() {
            vec![Who::Me, Who::Nobody]
        } else {
            vec![Who::Me]
        }
    }

    /// How many entries of the files the program changes, and listeners it reaches, when it is simply
    /// run.
    fn plainly(&self, harm: &Harm, who: Who) -> Result<usize> {
        let mut stage = Stage::new(&self.input, who)?;
        let before = stage.files()?;
        let mut shell = who.command("sh");
        shell.args(["-c", &script(harm), "sh", "2"]);
        stage.finish(&mut shell)?;
        let changed = changes(&before, &stage.files()?) + stage.knocks();
        stage.end()?;
        Ok(changed)
    }

    /// Tunes the program; returns the number of probes and what had changed.
    fn tuned(&self, harm: &Harm, who: Who) -> Result<(usize, Seen)> {
        let mut stage = Stage::new(&self.input, who)?;
        let before = stage.files()?;
        let output = stage
            .prepare(&mut self.tune(&script(harm), who, stage.history()?.path()))
            .stdout(Stdio::piped())
            .output()
            .context("could not start corewise")?;
        if !output.status.success() {
            bail!(
                "corewise tune of \"{}\" failed: {}",
                harm.name,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout)
            .context("corewise tune --json did not print JSON")?;
        let probes = answer["probes"].as_array().map_or(0, Vec::len);
        let seen = stage.seen(&before)?;
        stage.end()?;
        Ok((probes, seen))
    }

    /// Tunes a program that does not end and kills corewise meanwhile.
    fn cut_short(&self, signal: &str, who: Who) -> Result<Seen> {
        let mut stage = Stage::new(&self.input, who)?;
        let before = stage.files()?;
        let script = "echo x > a; trap '' TERM HUP INT; setsid sleep 1000 & sleep 1000";
        let mut tune = self.tune(script, who, stage.history()?.path());
        // A group of its own, as a shell would give it.
        let mut corewise = stage
            .prepare(&mut tune)
            .process_group(0)
            .spawn()
            .context("could not start corewise")?;
        let until = Instant::now() + Duration::from_secs(60);
        while stage.processes()?.len() < 4 {
            if Instant::now() > until || corewise.try_wait()?.is_some() {
                bail!("corewise tune started no probe that sleeps");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let killed = Command::new("sh")
            .args([
                "-c",
                "kill -\"$0\" \"$1\"",
                signal,
                &corewise.id().to_string(),
            ])
            .status();
        killed.context("could not send a signal")?;
        corewise.wait().context("could not wait for corewise")?;
        let seen = stage.seen(&before)?;
        stage.end()?;
        Ok(seen)
    }

    fn tune(&self, script: &str, who: Who, history: &Path) -> Command {
        let mut tune = who.command(&self.corewise);
        tune.args([
            "tune",
            "--json",
            "--",
            "sh",
            "-c",
            script,
            "sh",
            "{threads}",
        ])
        .env("COREWISE_HISTORY", history.join("history.sqlite"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
        tune
    }
}

fn script(harm: &Harm) -> String {
    format!("{}{WORK}", harm.script)
}

impl Stage {
    fn new(input: &Path, who: Who) -> Result<Self> {
        let folder = open_folder(None)?;
        let at = |name: &str| folder.path().join(name);
        let shm = Path::new("/dev/shm");
        let other = open_folder(shm.is_dir().then_some(shm))?;
        let name = format!("corewise-lab-{}", folder.path().display());
        let made = who
            .command("sh")
            .args([
                "-c",
                "cp \"$0\" big && echo a > a && echo bb > b && mkdir sub && echo d > sub/deep \
                 && mkfifo fifo && echo old > \"$1/old\"",
            ])
            .args([input, other.path()])
            .current_dir(folder.path())
            .status();
        if !made.context("could not start sh")?.success() {
            bail!("could not make files in {}", folder.path().display());
        }
        let path_listener = UnixListener::bind(at("socket"))?;
        std::fs::set_permissions(at("socket"), std::fs::Permissions::from_mode(0o777))?;
        let abstract_listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let tcp_listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        path_listener.set_nonblocking(true)?;
        abstract_listener.set_nonblocking(true)?;
        tcp_listener.set_nonblocking(true)?;
        let bystander = who
            .command("sleep")
            .arg("1000")
            .env("NAME", &name)
            .spawn()
            .context("could not start sleep")?;
        Ok(Self {
            folder,
            other,
            path_listener,
            abstract_listener,
            tcp_listener,
            name,
            bystander,
        })
    }

    fn history(&self) -> Result<tempfile::TempDir> {
        open_folder(None)
    }

    fn prepare<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let port = self.tcp_listener.local_addr().map_or(0, |a| a.port());
        command
            .current_dir(self.folder.path())
            .env("NAME", &self.name)
            .env("OTHER", self.other.path())
            .env("PORT", port.to_string())
            .stdin(Stdio::null())
    }

    fn finish(&self, command: &mut Command) -> Result<()> {
        self.prepare(command)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .context("could not start a program")?;
        Ok(())
    }

    /// Each entry of both folders and a digest of what it is.
    fn files(&self) -> Result<BTreeMap<PathBuf, u64>> {
        let mut all = BTreeMap::new();
        let mut open = vec![self.folder.path().to_owned(), self.other.path().to_owned()];
        while let Some(path) = open.pop() {
            let meta = path.symlink_metadata()?;
            let mut digest = DefaultHasher::new();
            let times = (
                meta.mtime(),
                meta.mtime_nsec(),
                meta.ctime(),
                meta.ctime_nsec(),
            );
            (meta.ino(), meta.mode(), meta.uid(), meta.len(), times).hash(&mut digest);
            if meta.is_file() {
                let mut content = Vec::new();
                std::fs::File::open(&path)?.read_to_end(&mut content)?;
                content.hash(&mut digest);
            } else if meta.is_dir() {
                for entry in std::fs::read_dir(&path)? {
                    open.push(entry?.path());
                }
            }
            all.insert(path, digest.finish());
        }
        Ok(all)
    }

    /// The processes of this case: those that have its name in their environment.
    fn processes(&self) -> Result<BTreeSet<u32>> {
        let word = format!("NAME={}", self.name).into_bytes();
        let entries = std::fs::read_dir("/proc").context("could not read /proc")?;
        Ok(entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid| {
                let environment = std::fs::read(format!("/proc/{pid}/environ"));
                environment
                    .unwrap_or_default()
                    .split(|&byte| byte == 0)
                    .any(|variable| variable == word)
            })
            .collect())
    }

    /// What has changed since `before`. Processes: the bystander must be there, and nobody else.
    fn seen(&self, before: &BTreeMap<PathBuf, u64>) -> Result<Seen> {
        let expected = BTreeSet::from([self.bystander.id()]);
        // The kernel needs a moment to take a killed namespace down.
        let until = Instant::now() + Duration::from_secs(10);
        let mut processes = self.processes()?;
        while processes != expected && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
            processes = self.processes()?;
        }
        Ok(Seen {
            files: changes(before, &self.files()?),
            processes: processes.symmetric_difference(&expected).count(),
            knocks: self.knocks(),
        })
    }

    /// How many of the three listeners somebody has connected to.
    fn knocks(&self) -> usize {
        let knocked = [
            self.path_listener.accept().is_ok(),
            self.abstract_listener.accept().is_ok(),
            self.tcp_listener.accept().is_ok(),
        ];
        knocked.into_iter().filter(|&knocked| knocked).count()
    }

    fn end(&mut self) -> Result<()> {
        self.bystander.kill()?;
        self.bystander.wait()?;
        Ok(())
    }
}

/// Entries that are new, gone or different.
fn changes(before: &BTreeMap<PathBuf, u64>, after: &BTreeMap<PathBuf, u64>) -> usize {
    let paths: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let differs = |path: &&&PathBuf| before.get(**path) != after.get(**path);
    paths.iter().filter(differs).count()
}

/// A new folder that every user may write to.
fn open_folder(under: Option<&Path>) -> Result<tempfile::TempDir> {
    let folder = match under {
        Some(under) => tempfile::tempdir_in(under),
        None => tempfile::tempdir(),
    }
    .context("could not make a temporary folder")?;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777))?;
    Ok(folder)
}
