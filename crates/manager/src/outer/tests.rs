//! An outer manager that says what the tests say.

use super::*;

#[test]
fn who_stands_alone_holds_nothing_back() {
    let mut outer = Outer::new(None);
    let waiter = Waiter::new().unwrap();
    outer.first_program(&waiter, 4, 1);
    assert!(!outer.is_linked());
    assert_eq!(outer.held_back_until_ns(1), None);
    assert_eq!(outer.claim(), None);
}

/// Root's manager, played by the test.
struct Roots {
    _keep: tempfile::TempDir,
    folder: std::path::PathBuf,
    listener: OwnedFd,
}

impl Roots {
    /// `None` if the test is not run by root.
    fn or_skip() -> Option<Roots> {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: nobody can play root's manager but root");
            return None;
        }
        let keep = tempfile::tempdir().unwrap();
        let folder = corewise_wire::Folder::at(keep.path().join("run")).unwrap();
        let listener =
            rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        let address = SocketAddrUnix::new(folder.socket()).unwrap();
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 5).unwrap();
        Some(Roots {
            _keep: keep,
            folder: folder.path().to_owned(),
            listener,
        })
    }

    fn outer(&self) -> Outer {
        Outer::new(Some(System::at(&self.folder)))
    }

    fn accept(&self) -> Channel {
        Channel::from(rustix::net::accept(&self.listener).unwrap())
    }
}

fn wanted(channel: &Channel) -> u32 {
    match channel.receive::<ToManager>().unwrap().message {
        ToManager::Join(join) => join.wants.max_threads,
        ToManager::Ask(wants) => wants.max_threads,
        other => panic!("{other:?}"),
    }
}

fn welcome(channel: &Channel) -> corewise_wire::ClaimWriter {
    let (claim, claim_page) = corewise_wire::ClaimWriter::create(1).unwrap();
    let (_, progress_page) = corewise_wire::ProgressReader::create().unwrap();
    let welcome = ToProgram::Welcome {
        version: VERSION,
        features: 0,
        program: 7,
        rule: corewise_abi::message::LocalRule::Leave,
    };
    let pages = [
        std::os::fd::AsFd::as_fd(&claim_page),
        std::os::fd::AsFd::as_fd(&progress_page),
    ];
    channel.send(&welcome, &pages).unwrap();
    claim
}

#[test]
fn first_claims_are_held_back_until_the_outer_one_is_there_or_for_a_moment() {
    let Some(roots) = Roots::or_skip() else {
        return;
    };
    let waiter = Waiter::new().unwrap();
    let mut outer = roots.outer();
    outer.first_program(&waiter, 4, 1);
    assert_eq!(outer.held_back_until_ns(2), Some(1 + HELD_BACK_NS));
    assert_eq!(
        outer.held_back_until_ns(1 + HELD_BACK_NS),
        None,
        "no longer"
    );
    let channel = roots.accept();
    assert_eq!(wanted(&channel), 4);
    outer.hear(&waiter, 2);
    assert!(outer.held_back_until_ns(2).is_some(), "not answered");
    let mut page = welcome(&channel);
    outer.hear(&waiter, 3);
    assert!(outer.held_back_until_ns(3).is_some(), "not granted");
    assert_eq!(outer.claim(), None);
    page.grant(2, [0, 64]);
    assert_eq!(outer.held_back_until_ns(4), None);
    let claim = outer.claim().unwrap();
    assert_eq!(
        (claim.cpus.to_string(), claim.threads),
        ("0,64".to_owned(), 2)
    );
    // It ends in good order.
    page.end();
    outer.hear_grant();
    assert_eq!(outer.claim(), None);
}

#[test]
fn what_was_wanted_meanwhile_is_asked_for_after_the_welcome() {
    let Some(roots) = Roots::or_skip() else {
        return;
    };
    let waiter = Waiter::new().unwrap();
    let mut outer = roots.outer();
    outer.first_program(&waiter, 4, 1);
    let channel = roots.accept();
    assert_eq!(wanted(&channel), 4);
    let sum = Sum {
        most: 9,
        ..Sum::default()
    };
    outer.tell(sum.clone());
    let _page = welcome(&channel);
    outer.hear(&waiter, 2);
    outer.tell(sum.clone());
    assert_eq!(wanted(&channel), 9);
    outer.tell(sum);
    let nothing = channel.receive::<ToManager>();
    assert!(matches!(nothing, Err(WireError::WouldBlock)), "{nothing:?}");
}

#[test]
fn who_refuses_is_not_asked_again_at_once_and_who_is_gone_is() {
    let Some(roots) = Roots::or_skip() else {
        return;
    };
    let waiter = Waiter::new().unwrap();
    let mut outer = roots.outer();
    outer.first_program(&waiter, 4, 1);
    let refuses = roots.accept();
    let why = ToProgram::Refused("not you".to_owned());
    refuses.send(&why, &[]).unwrap();
    outer.hear(&waiter, 2);
    outer.seek(&waiter, 3);
    assert!(matches!(outer.link, Link::Nobody));
    outer.seek(&waiter, 2 + FIRST_PAUSE_NS);
    let channel = roots.accept();
    let mut page = welcome(&channel);
    page.grant(1, [0]);
    outer.hear(&waiter, 3 + FIRST_PAUSE_NS);
    assert!(outer.claim().is_some());
    drop(channel);
    outer.hear(&waiter, 4 + FIRST_PAUSE_NS);
    assert_eq!(outer.claim(), None);
    outer.seek(&waiter, 5 + FIRST_PAUSE_NS);
    assert!(matches!(outer.link, Link::Asked(..)));
}
