//! Promises of SCRAM: the example of RFC 7677 runs as it stands there, nobody learns who is known, and every message is taken whole or not.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::exchange::ScramFault;
use super::verifier::Verifier;
use super::*;

/// RFC 7677 §3: user `user`, password `pencil`.
const CLIENT_FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
const SERVER_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
const SERVER_FIRST: &str =
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
const CLIENT_FINAL: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
const SERVER_FINAL: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";
/// The verifier of that user, as PostgreSQL keeps it.
const VERIFIER: &str = "user:SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";
const SALT_KEY: &str = "#salt-key AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

fn parse(text: &str) -> Result<ScramFile, String> {
    ScramFile::parse(Path::new("verifiers"), text).map_err(|error| error.to_string())
}

fn file() -> ScramFile {
    parse(&format!("# users\n{SALT_KEY}\n{VERIFIER}\n")).expect("valid")
}

fn challenge(client_first: &str) -> Result<Challenge, ScramFault> {
    Challenge::new(&file(), client_first.as_bytes(), SERVER_NONCE)
}

#[test]
fn the_example_of_rfc_7677_runs() {
    let of_password = Verifier::of_password(
        "pencil",
        &STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").expect("base64"),
        4_096.try_into().expect("not zero"),
    );
    assert_eq!(of_password.stored_key, file().verifier("user").0.stored_key);
    let challenge = challenge(CLIENT_FIRST).expect("well-formed");
    assert_eq!(challenge.server_first(), SERVER_FIRST);
    let finished = challenge.finish(CLIENT_FINAL.as_bytes()).expect("the password is right");
    assert_eq!((&*finished.user, &*finished.server_final), ("user", SERVER_FINAL.as_bytes()));
}

/// A user that does not exist is asked as one that does, the same thing every time and by every node with the file, and fails as a wrong
/// password does.
#[test]
fn an_unknown_user_is_asked_as_a_known_one() {
    let first = |file: &ScramFile, user: &str, nonce: &str| {
        let message = format!("n,,n={user},r=abc");
        let challenge = Challenge::new(file, message.as_bytes(), nonce).expect("well-formed");
        let answer = format!("c=biws,r=abc{nonce},p={}", STANDARD.encode([7; 32]));
        let asked = challenge.server_first().to_owned();
        (asked, challenge.finish(answer.as_bytes()).expect_err("a made-up proof"))
    };
    let (known, wrong) = first(&file(), "user", "x");
    let (unknown, missing) = first(&file(), "nobody", "x");
    assert_eq!((wrong, missing), (ScramFault::Proof, ScramFault::Proof));
    assert_eq!(first(&file(), "nobody", "x").0, unknown, "it is somebody else each time");
    assert_ne!(first(&file(), "noone", "x").0, unknown, "everybody unknown is the same");
    let shape = |text: &str| text.split(',').map(|part| part[..2].to_owned()).collect::<Vec<_>>();
    let salt = |text: &str| {
        STANDARD.decode(text.split(',').nth(1).expect("a salt").trim_start_matches("s=")).expect("base64")
    };
    assert_eq!(shape(&known), shape(&unknown));
    assert_eq!(salt(&known).len(), salt(&unknown).len());
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("verifiers");
    assert!(add_scram_user(&path, "real", b"password").expect("added"));
    let written = ScramFile::read(&path).expect("valid");
    let count = |text: &str| text.split(',').nth(2).expect("iterations").to_owned();
    assert_eq!(count(&first(&written, "real", "x").0), count(&first(&written, "nobody", "x").0));
    assert_eq!(
        first(&written, "nobody", "x").0,
        first(&ScramFile::read(&path).expect("valid"), "nobody", "x").0
    );
}

#[test]
fn first_messages_are_taken_whole_or_not() {
    for (message, fault) in [
        ("", ScramFault::Malformed),
        ("n,,n=user", ScramFault::Malformed),
        ("n,n=user,r=a", ScramFault::Malformed),
        ("n,,r=a,n=user", ScramFault::Malformed),
        ("n,,n=,r=a", ScramFault::Malformed),
        ("n,,n=user,r=", ScramFault::Malformed),
        ("n,,n=user,r=a b", ScramFault::Malformed),
        ("n,,n=us=er,r=a", ScramFault::Malformed),
        ("n,,n=us=2,r=a", ScramFault::Malformed),
        ("n,,n=user\0,r=a", ScramFault::Malformed),
        ("x,,n=user,r=a", ScramFault::Malformed),
        ("p=tls-unique,,n=user,r=a", ScramFault::ChannelBinding),
        ("p=tls-exporter,,n=user,r=a", ScramFault::ChannelBinding),
        ("n,,m=must,n=user,r=a", ScramFault::Extension),
        ("n,a=root,n=user,r=a", ScramFault::OtherUser),
        ("n,root,n=user,r=a", ScramFault::Malformed),
    ] {
        assert_eq!(challenge(message).err(), Some(fault), "{message:?}");
    }
    let long = format!("n,,n=user,r={}", "a".repeat(257));
    assert_eq!(challenge(&long).err(), Some(ScramFault::Malformed));
    assert!(Challenge::new(&file(), &[0xFF, b','], "x").is_err());
    for message in ["y,,n=user,r=a", "n,a=user,n=user,r=a", "n,,n=user,r=a,x=later", "n,,n=us=2Cer=3D,r=a"] {
        assert!(challenge(message).is_ok(), "{message}");
    }
    for len in 0..CLIENT_FIRST.len() - 20 {
        assert!(challenge(&CLIENT_FIRST[..len]).is_err(), "{len}");
    }
}

#[test]
fn final_messages_answer_this_challenge_and_no_other() {
    let finish = |message: &str| challenge(CLIENT_FIRST).expect("well-formed").finish(message.as_bytes());
    for (message, fault) in [
        ("".to_owned(), ScramFault::Malformed),
        (CLIENT_FINAL.replace(",p=", ",q="), ScramFault::Malformed),
        (CLIENT_FINAL.replace("c=biws,", ""), ScramFault::Malformed),
        (CLIENT_FINAL.replace("p=dH", "p=!!"), ScramFault::Malformed),
        (format!("{},p=AAAA", CLIENT_FINAL.split(",p=").next().expect("a part")), ScramFault::Malformed),
        // The header of `y`, while the first message said `n`: somebody took the offer of a binding away.
        (CLIENT_FINAL.replace("biws", "eSws"), ScramFault::OtherChallenge),
        (CLIENT_FINAL.replace("NEkqO%", "NEkqO&"), ScramFault::OtherChallenge),
        (CLIENT_FINAL.replace("p=dHz", "p=dHy"), ScramFault::Proof),
        (CLIENT_FINAL.replace(",p=", ",x=1,p="), ScramFault::Proof),
    ] {
        assert_eq!(finish(&message), Err(fault), "{message}");
    }
    assert!(finish(CLIENT_FINAL).is_ok());
}

#[test]
fn the_file_is_edited_in_place_and_holds_no_password() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("verifiers");
    assert!(add_scram_user(&path, "zoe", b"one two three").expect("added"));
    assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
    let before = std::fs::read_to_string(&path).expect("text");
    std::fs::write(&path, format!("# mine\n{before}")).expect("written");
    assert!(!add_scram_user(&path, "zoe", b"four five six").expect("changed"));
    assert!(add_scram_user(&path, "yan", "caf\u{e9}".as_bytes()).expect("added"));
    let after = std::fs::read_to_string(&path).expect("text");
    let key = before.lines().next().expect("a line");
    assert!(after.starts_with(&format!("# mine\n{key}\n")) && after.lines().count() == 4, "{after}");
    assert!(
        !after.contains("four") && !format!("{:?}", ScramFile::read(&path).expect("valid")).contains("$")
    );
    remove_scram_user(&path, "zoe").expect("removed");
    assert!(
        remove_scram_user(&path, "zoe").is_err() && ScramFile::read(&path).expect("valid").contains("yan")
    );
    for (user, password) in
        [("a:b", &b"x"[..]), ("a\u{ad}b", b"x"), ("zoe", b""), ("zoe", b"\xFF"), ("zoe", b"a\x07b")]
    {
        assert!(add_scram_user(&path, user, password).is_err(), "{user:?}");
    }
}

#[test]
fn a_bad_file_is_an_error_that_names_the_line() {
    assert!(parse(VERIFIER).expect_err("no key").contains("#salt-key"));
    for (line, what) in [
        ("user:secret", "is not user:SCRAM-SHA-256"),
        ("user", "no ':'"),
        (&VERIFIER.replace("4096", "4095"), "is not user:"),
        (&VERIFIER.replace("4096", "10000001"), "is not user:"),
        (&VERIFIER.replace("WG5d", "WG5"), "is not user:"),
        ("#salt-key AAAA", "32 bytes"),
        (&format!("{VERIFIER}\n{VERIFIER}"), "second time"),
    ] {
        let error = parse(&format!("{SALT_KEY}\n{line}")).expect_err(line);
        assert!(error.contains(what) && error.contains("verifiers:") && !error.contains("secret"), "{error}");
    }
}
