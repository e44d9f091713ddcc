//! Promises of authentication: mosquitto's files are read, nobody is let in by accident, a reload acts at once.

use std::path::Path;

use super::*;
use crate::metrics::Metrics;

/// Written by `mosquitto_passwd`: alice/secret with `-H sha512-pbkdf2`.
const ALICE: &str = "alice:$7$101$spxm/AjLFmPiLJK+$e0VhaFAyod8Z/0zYL6uSZCG+tIvATuEZEL6ubeu2LYb4oCPTmCJ54shkLCe3qXPB2cIudmFpYokJNvjXx9fcwQ==";
/// Written by `mosquitto_passwd`: bob/hunter2 with `-H sha512`.
const BOB: &str = "bob:$6$1mKxgg9m/jlDP41I$q3laXCA8OrEhutWRXwJnMCSF2VD/BkwyxUqZ/mdp8z1kOU7QSz1Dbtz6KEqjUAlWFodOgDjn6QwKZvelXY6inQ==";

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

fn credentials(user: Option<&str>, password: Option<&str>) -> Credentials {
    Credentials {
        user_name: user.map(Arc::from),
        password: password.map(|password| Bytes::copy_from_slice(password.as_bytes())),
        certificate_cn: None,
        client_id: "c1".into(),
        peer: ([127, 0, 0, 1], 1).into(),
        now: Millis(1_000_000),
    }
}

fn ask(authority: &Authority, user: Option<&str>, password: Option<&str>) -> Result<Option<String>, Denied> {
    let principal = run(authority.authenticate(credentials(user, password)))?;
    Ok(principal.user.map(|user| user.to_string()))
}

fn config(directory: &Path, passwords: Option<&str>, acl: Option<&str>) -> Config {
    let mut config = Config::default();
    config.auth.password_file = passwords.map(|text| write(directory, "passwords", text));
    config.acl.file = acl.map(|text| write(directory, "acl", text));
    config
}

fn write(directory: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, text).expect("written");
    path
}

fn open(config: &Config) -> Result<Authority, AuthFileError> {
    Authority::open(config, Metrics::new(1, 1).control())
}

#[test]
fn files_of_mosquitto_passwd_are_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let authority =
        open(&config(directory.path(), Some(&format!("# users\n{ALICE}\n\n{BOB}\n")), None)).expect("valid");
    assert_eq!(ask(&authority, Some("alice"), Some("secret")), Ok(Some("alice".into())));
    assert_eq!(ask(&authority, Some("alice"), Some("secret")), Ok(Some("alice".into())), "from the cache");
    assert_eq!(ask(&authority, Some("bob"), Some("hunter2")), Ok(Some("bob".into())));
    for (user, password) in
        [("alice", "Secret"), ("alice", ""), ("bob", "secret"), ("carol", "secret"), ("", "secret")]
    {
        assert_eq!(ask(&authority, Some(user), Some(password)), Err(Denied::BadCredentials), "{user}");
    }
    assert_eq!(ask(&authority, Some("alice"), None), Err(Denied::BadCredentials));
    assert_eq!(ask(&authority, None, None), Err(Denied::NotAuthorized));
    assert_eq!(ask(&authority, None, Some("secret")), Err(Denied::NotAuthorized));
}

/// DESIGN §3: the user of a session is an authenticated one; a claimed name is none.
#[test]
fn without_authenticator_everyone_is_anonymous() {
    let authority = open(&Config::default()).expect("valid");
    assert_eq!(ask(&authority, None, None), Ok(None));
    assert_eq!(ask(&authority, Some("alice"), Some("x")), Ok(None));
    let mut closed = Config::default();
    closed.auth.anonymous = Some(false);
    assert_eq!(ask(&open(&closed).expect("valid"), Some("alice"), Some("x")), Err(Denied::NotAuthorized));
}

#[test]
fn anonymous_beside_a_password_file_must_be_written_and_does_not_excuse_a_wrong_password() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut config = config(directory.path(), Some(ALICE), None);
    config.auth.anonymous = Some(true);
    let authority = open(&config).expect("valid");
    assert_eq!(ask(&authority, None, None), Ok(None));
    assert_eq!(ask(&authority, Some("alice"), Some("wrong")), Err(Denied::BadCredentials));
    assert_eq!(ask(&authority, Some("nobody"), Some("wrong")), Err(Denied::BadCredentials));
}

#[test]
fn a_certificate_is_its_common_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut config = config(directory.path(), Some(ALICE), None);
    let with_certificate = |user: Option<&str>| Credentials {
        certificate_cn: Some("device-7".into()),
        ..credentials(user, None)
    };
    let authority = open(&config).expect("valid");
    assert_eq!(
        run(authority.authenticate(with_certificate(None))),
        Ok(Principal::new(Some("device-7".into()), Proof::Login { certified: true }))
    );
    assert_eq!(run(authority.authenticate(with_certificate(Some("alice")))), Err(Denied::BadCredentials));
    config.auth.certificate_user = false;
    let authority = open(&config).expect("valid");
    assert_eq!(run(authority.authenticate(with_certificate(None))), Err(Denied::NotAuthorized));
}

#[test]
fn a_bad_password_file_is_an_error_that_names_the_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let table = [
        ("alice:secret", 1, "plain text"),
        (&format!("{ALICE}\n{ALICE}"), 2, "second time"),
        ("\n\nalice", 3, "no ':'"),
        (":$7$1$AAAA$AAAA", 1, "no user name"),
        ("a:$7$0$AAAA$AAAA", 1, "iteration count"),
        ("a:$7$99999999999$AAAA$AAAA", 1, "iteration count"),
        ("a:$7$101$!$AAAA", 1, "salt is not base64"),
        ("a:$7$101$AAAA$AAAA", 1, "64 bytes"),
        ("a:$5$AAAA$AAAA", 1, "$7$ or $6$"),
    ];
    for (text, line, what) in table {
        let error = open(&config(directory.path(), Some(text), None)).expect_err(text);
        let AuthFileError::Line { line: at, what: message, .. } = &error else { panic!("{error}") };
        assert!(*at == line && message.contains(what), "{text:?}: {error}");
        assert!(!error.to_string().contains("secret"), "an error must not repeat a password");
    }
    let mut missing = Config::default();
    missing.auth.password_file = Some("/nonexistent/passwords".into());
    assert!(matches!(open(&missing), Err(AuthFileError::Read { .. })));
    missing.auth.password_file = None;
    missing.acl.file = Some("/nonexistent/acl".into());
    assert!(matches!(open(&missing), Err(AuthFileError::Read { .. })));
}

/// Scenario 30: a changed rule acts at once, and whoever kept the old decision can see it.
#[test]
fn a_reload_swaps_the_policy_or_keeps_the_old_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = config(directory.path(), Some(ALICE), Some("user alice\ntopic read a/#\n"));
    let authority = open(&config).expect("valid");
    let before = authority.grants(Some("alice"), &Brought::Known(None));
    assert!(before.may_read("c", "a/b") && before.epoch() == authority.epoch());
    assert_eq!(ask(&authority, Some("alice"), Some("secret")), Ok(Some("alice".into())));

    write(directory.path(), "acl", "user alice\ntopic read b/#\n");
    authority.reload(&config).expect("valid");
    let after = authority.grants(Some("alice"), &Brought::Known(None));
    assert!(authority.epoch() > before.epoch() && after.epoch() == authority.epoch());
    assert!(!after.may_read("c", "a/b") && after.may_read("c", "b/b"));

    write(directory.path(), "acl", "nonsense\n");
    assert!(authority.reload(&config).is_err());
    assert!(
        authority.epoch() == after.epoch()
            && authority.grants(Some("alice"), &Brought::Known(None)).may_read("c", "b/b")
    );

    write(directory.path(), "acl", "");
    write(directory.path(), "passwords", BOB);
    authority.reload(&config).expect("valid");
    assert_eq!(
        ask(&authority, Some("alice"), Some("secret")),
        Err(Denied::BadCredentials),
        "not from the cache"
    );
}

#[test]
fn users_are_added_changed_and_removed_in_place() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("passwords");
    assert!(add_user(&path, "zoe", b"one").expect("added"));
    assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
    write(
        directory.path(),
        "passwords",
        &format!("# mine\n{}", std::fs::read_to_string(&path).expect("text")),
    );
    assert!(!add_user(&path, "zoe", b"two").expect("changed"));
    assert!(add_user(&path, "yan", b"three").expect("added"));
    let file = PasswordFile::read(&path).expect("valid");
    assert!(
        file.len() == 2
            && file.verify("zoe", b"two")
            && !file.verify("zoe", b"one")
            && file.verify("yan", b"three")
    );
    let text = std::fs::read_to_string(&path).expect("text");
    assert!(
        text.starts_with("# mine\n") && text.contains("zoe:$7$100000$") && !text.contains("two"),
        "{text}"
    );
    remove_user(&path, "zoe").expect("removed");
    assert!(matches!(remove_user(&path, "zoe"), Err(AuthFileError::NoUser { .. })));
    for name in ["", "a:b", "#a", "a\nb", " a"] {
        assert!(matches!(add_user(&path, name, b"x"), Err(AuthFileError::UserName { .. })), "{name:?}");
    }
    write(directory.path(), "passwords", "garbage");
    assert!(add_user(&path, "zoe", b"one").is_err());
    assert_eq!(std::fs::read_to_string(&path).expect("text"), "garbage");
}

/// P9: the queue of password checks is bounded, and nobody fills it for others: where one address floods it, another one takes a place of
/// it and is served next.
#[test]
fn a_flood_of_password_checks_holds_up_no_other_address() {
    let pool = Pool::start(1, 4).expect("threads");
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let (started, running) = std::sync::mpsc::channel::<()>();
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let flood: std::net::IpAddr = [127, 0, 0, 1].into();
    let same: std::net::IpAddr = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().into();
    let other: std::net::IpAddr = [127, 0, 0, 2].into();
    run(async {
        let note = |what: &'static str| {
            let order = Arc::clone(&order);
            move || order.lock().expect("not poisoned").push(what)
        };
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut first = Box::pin(pool.run(flood, move || {
            started.send(()).expect("the test waits");
            blocked.recv().is_ok()
        }));
        assert!(first.as_mut().poll(&mut context).is_pending());
        running.recv().expect("the thread took it");
        let mut waiting: Vec<_> = (0..4).map(|_| Box::pin(pool.run(flood, note("flood")))).collect();
        assert!(waiting.iter_mut().all(|one| one.as_mut().poll(&mut context).is_pending()));
        assert_eq!(pool.run(same, note("flood")).await, None, "full, and it has most of it");
        let mut login = Box::pin(pool.run(other, note("login")));
        assert!(login.as_mut().poll(&mut context).is_pending(), "it has a place");
        release.send(()).expect("the thread waits");
        assert_eq!((first.await, login.await), (Some(true), Some(())));
        let mut done = 0;
        for one in waiting {
            done += usize::from(one.await.is_some());
        }
        assert_eq!(done, 3, "the last one gave way");
    });
    assert_eq!(*order.lock().expect("not poisoned"), ["flood", "login", "flood", "flood"]);
}

#[test]
fn credentials_do_not_show_the_password() {
    assert!(!format!("{:?}", credentials(Some("alice"), Some("secret"))).contains("secret"));
}

/// P10: whoever edits a file of users waits for the others: nobody is lost, and nobody who was removed comes back.
#[test]
fn edits_at_the_same_time_are_all_there() {
    let files = tempfile::tempdir().expect("a directory");
    let (path, link) = (files.path().join("passwords"), files.path().join("link"));
    add_user(&path, "gone", b"x").expect("added");
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    std::thread::scope(|scope| {
        for number in 0..6 {
            let (path, link) = (&path, &link);
            let through = if number % 2 == 0 { path } else { link };
            scope.spawn(move || add_user(through, &format!("user{number}"), b"x").expect("added"));
        }
        scope.spawn(|| remove_user(&path, "gone").expect("removed"));
    });
    let text = std::fs::read_to_string(&path).expect("the file");
    let mut names: Vec<&str> = text.lines().filter_map(|line| line.split(':').next()).collect();
    names.sort_unstable();
    assert_eq!(names, ["user0", "user1", "user2", "user3", "user4", "user5"]);
    assert!(link.is_symlink(), "a link stays one");
}
