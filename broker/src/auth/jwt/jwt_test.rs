//! Promises of tokens: the examples of RFC 7515 are taken with their own keys and with no other, and nothing that the token says of itself
//! decides how it is judged.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};

use super::*;
use crate::auth::acl::Who;

/// RFC 7515 §A.1.1: a key for HS256.
const OCT: &str = r#"{"kty":"oct","kid":"hs","k":"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"}"#;
/// RFC 7515 §A.2.1: the public part of a key for RS256.
const RSA: &str = r#"{"kty":"RSA","kid":"rs","n":"ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ","e":"AQAB"}"#;
/// RFC 7515 §A.3.1: the public part of a key for ES256.
const EC: &str = r#"{"kty":"EC","crv":"P-256","kid":"es","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}"#;
/// The claims of all of them: {"iss":"joe", "exp":1300819380, "http://example.com/is_root":true}.
const CLAIMS: &str =
    "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
const EXP_MS: u64 = 1_300_819_380_000;
const HS_HEAD: &str = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9";
const HS_SIGN: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const RS_HEAD: &str = "eyJhbGciOiJSUzI1NiJ9";
const RS_SIGN: &str = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
const ES_HEAD: &str = "eyJhbGciOiJFUzI1NiJ9";
const ES_SIGN: &str =
    "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
/// The public keys of §A.2 and §A.3 as `openssl` writes them.
const PEM: &str = "\
-----BEGIN PUBLIC KEY-----\n\
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAofgWCuLjybRlzo0tZWJj\n\
NiuSfb4p4fAkd/wWJcyQoTbji9k0l8W26mPddxHmfHQp+Vaw+4qPCJrcS2mJPMEz\n\
P1Pt0Bm4d4QlL+yRT+SFd2lZS+pCgNMsD1W/YpRPEwOWvG6b32690r2jZ47soMZo\n\
9wGzjb/7OMg0LOL+bSf63kpaSHSXndS5z5rexMdbBYUsLA9e+KXBdQOS+UTo7WTB\n\
EMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6/I5IhlJH7aGhyxX\n\
FvUK+DWNmoudF8NAco9/h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXp\n\
oQIDAQAB\n\
-----END PUBLIC KEY-----\n\
-----BEGIN PUBLIC KEY-----\n\
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEf83OJ3D2xF1Bg8vub9tLe1gHMzV7\n\
6e8Tus9uPHvRVEXH8UTNG72bfocs3+257rn0s2ldbqkLJK2KRiMohYjlrQ==\n\
-----END PUBLIC KEY-----\\n";
const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
const NOW_MS: u64 = 1_800_000_000_000;

/// Keys in files; the files go with it.
struct Files(tempfile::TempDir, Auth);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"), crate::config::Config::default().auth)
    }

    fn put(&self, name: &str, content: impl AsRef<[u8]>) -> std::path::PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).expect("written");
        path
    }

    fn secret(mut self) -> Self {
        self.1.jwt_secret_file = Some(self.put("secret", SECRET));
        self
    }

    fn pem(mut self, content: &str) -> Self {
        self.1.jwt_public_key_file = Some(self.put("keys.pem", content));
        self
    }

    fn set(mut self, keys: &[&str]) -> Self {
        self.1.jwt_jwks_file = Some(self.put("keys.json", format!("{{\"keys\":[{}]}}", keys.join(","))));
        self
    }

    fn tokens(&self) -> Tokens {
        Tokens::read(&self.1).expect("valid").expect("some")
    }

    fn refused(&self) -> String {
        Tokens::read(&self.1).expect_err("must be refused").to_string()
    }
}

/// A token with this header and these claims, signed with [`SECRET`].
fn signed(header: &Value, claims: &Value) -> String {
    let text = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
    let sign = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), text.as_bytes());
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(sign))
}

fn hs256(claims: &Value) -> String {
    signed(&json!({ "alg": "HS256" }), claims)
}

fn check(tokens: &Tokens, token: &str) -> Result<Bearer, TokenFault> {
    tokens.check(token.as_bytes(), None, "c1", NOW_MS)
}

fn good() -> Value {
    json!({ "sub": "alice", "exp": NOW_MS / 1_000 + 60 })
}

/// RFC 7515 §A.1 to §A.3: each of the examples is good with its key, as a JWK and as PEM, until it expires.
#[test]
fn the_examples_of_rfc_7515_are_taken() {
    let files = [
        Files::new().set(&[OCT, RSA, EC]),
        Files::new().pem(PEM).set(&[OCT]),
        Files::new().pem(PEM).set(&[OCT, RSA]).secret(),
    ];
    for mut files in files {
        files.1.jwt_user_claim = "iss".into();
        files.1.jwt_leeway_s = 0;
        let tokens = files.tokens();
        for (head, sign) in [(HS_HEAD, HS_SIGN), (RS_HEAD, RS_SIGN), (ES_HEAD, ES_SIGN)] {
            let token = format!("{head}.{CLAIMS}.{sign}");
            assert!(Tokens::looks_like_one(token.as_bytes()));
            let at = |now_ms| tokens.check(token.as_bytes(), None, "c1", now_ms);
            let bearer = at(EXP_MS - 1).expect("good");
            assert!(&*bearer.user == "joe" && bearer.until_ms == EXP_MS && tokens.has(bearer.key), "{head}");
            assert_eq!(at(EXP_MS), Err(TokenFault::Expired));
            // One bit of the claims, and of the signature.
            let other = CLAIMS.replacen('J', "K", 1);
            let forged = format!("{head}.{other}.{sign}");
            assert_eq!(tokens.check(forged.as_bytes(), None, "c1", 0), Err(TokenFault::Signature), "{head}");
            let forged = format!(
                "{head}.{CLAIMS}.{}",
                sign.replacen('D', "E", 1).replacen("cC4", "cD4", 1).replacen("dB", "dC", 1)
            );
            assert_eq!(tokens.check(forged.as_bytes(), None, "c1", 0), Err(TokenFault::Signature), "{head}");
        }
    }
}

/// RFC 8725 §2.1: a token that names another algorithm than its key is for is not taken: not `none`, and not HS256 with a public key as
/// the secret.
#[test]
fn no_token_chooses_how_it_is_verified() {
    let tokens = Files::new().pem(PEM).tokens();
    // RFC 7519 §6.1.
    let unsecured = format!("eyJhbGciOiJub25lIn0.{CLAIMS}.");
    assert_eq!(tokens.check(unsecured.as_bytes(), None, "c1", 0), Err(TokenFault::NoKey));
    for alg in ["none", "None", "NONE", "", "hs256", "HS384", "HS512", "RS512", "PS256", "ES384", "EdDSA"] {
        let token = signed(&json!({ "alg": alg }), &good());
        assert_eq!(check(&tokens, &token), Err(TokenFault::NoKey), "{alg}");
    }
    // The secret of the attacker is what everybody may know: the file, or the key in it.
    let der = PEM.lines().filter(|line| !line.starts_with('-')).collect::<String>();
    for public in [PEM.as_bytes(), PEM.trim().as_bytes(), der.as_bytes()] {
        let text = [json!({ "alg": "HS256" }), good()]
            .map(|part| URL_SAFE_NO_PAD.encode(part.to_string()))
            .join(".");
        let sign = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, public), text.as_bytes());
        let token = format!("{text}.{}", URL_SAFE_NO_PAD.encode(sign));
        assert_eq!(check(&tokens, &token), Err(TokenFault::NoKey));
    }
    // With a secret beside it, a signature of the one under the name of the other is wrong.
    let tokens = Files::new().secret().pem(PEM).tokens();
    for alg in ["RS256", "ES256"] {
        assert_eq!(check(&tokens, &signed(&json!({ "alg": alg }), &good())), Err(TokenFault::Signature));
    }
    assert!(check(&tokens, &hs256(&good())).is_ok());
}

#[test]
fn a_key_id_is_believed_only_where_the_key_has_it() {
    let rng = ring::rand::SystemRandom::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &rng).expect("a key");
    let pair =
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &rng).expect("a key");
    let point = pair.public_key().as_ref();
    let [x, y] = [&point[1..33], &point[33..]].map(|part| URL_SAFE_NO_PAD.encode(part));
    let own =
        json!({ "kty": "EC", "crv": "P-256", "kid": "own", "alg": "ES256", "use": "sig", "x": x, "y": y });
    let files = Files::new().set(&[EC, &own.to_string()]);
    let tokens = files.tokens();
    let token = |kid: Value| {
        let header = json!({ "alg": "ES256", "kid": kid });
        let text = [header, good()].map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
        let sign = pair.sign(&rng, text.as_bytes()).expect("signed");
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(sign))
    };
    assert!(check(&tokens, &token("own".into())).is_ok());
    assert_eq!(check(&tokens, &token("es".into())), Err(TokenFault::Signature));
    assert_eq!(check(&tokens, &token("other".into())), Err(TokenFault::NoKey));
    assert_eq!(check(&tokens, &token(Value::Null)), Err(TokenFault::NoKey), "two keys could be meant");
    assert_eq!(check(&tokens, &token(7.into())), Err(TokenFault::Malformed));
    let alone = Files::new().set(&[&own.to_string()]).tokens();
    let bearer = check(&alone, &token(Value::Null)).expect("only one can be meant");
    assert!(tokens.has(bearer.key) && !Files::new().set(&[EC]).tokens().has(bearer.key));
}

#[test]
fn claims_are_held_against_the_configuration() {
    let mut files = Files::new().secret();
    let with = |name: &str, value: Value| {
        let mut claims = good();
        claims[name] = value;
        hs256(&claims)
    };
    let now = NOW_MS / 1_000;
    let tokens = files.tokens();
    let faults = [
        (with("exp", Value::Null), TokenFault::Claims),
        (with("exp", "soon".into()), TokenFault::Claims),
        (with("exp", (-1).into()), TokenFault::Claims),
        (hs256(&json!({ "sub": "alice" })), TokenFault::NoExpiry),
        // The leeway is 30 s.
        (with("exp", (now - 30).into()), TokenFault::Expired),
        (with("nbf", (now + 31).into()), TokenFault::NotYet),
        (with("nbf", "now".into()), TokenFault::Claims),
        (with("aud", "somebody".into()), TokenFault::Audience),
        (with("sub", Value::Null), TokenFault::NoUser),
        (with("sub", 7.into()), TokenFault::NoUser),
        (hs256(&json!([1])), TokenFault::Claims),
        (with("acl", "all".into()), TokenFault::Rules),
    ];
    for (token, fault) in faults {
        assert_eq!(check(&tokens, &token), Err(fault), "{token}");
    }
    for token in [
        with("exp", (now - 29).into()),
        with("exp", json!(now as f64 + 0.5)),
        with("exp", u64::MAX.into()),
        with("nbf", (now + 30).into()),
        with("iss", "anybody".into()),
    ] {
        assert!(check(&tokens, &token).is_ok(), "{token}");
    }
    files.1.jwt_audience = Some("broker".into());
    files.1.jwt_issuer = Some("us".into());
    files.1.jwt_user_claim = "name".into();
    let tokens = files.tokens();
    let token =
        |iss: Value, aud: Value| hs256(&json!({ "name": "bob", "exp": now + 60, "iss": iss, "aud": aud }));
    assert_eq!(
        check(&tokens, &token("us".into(), json!(["x", "broker"]))).map(|it| it.user),
        Ok("bob".into())
    );
    assert!(check(&tokens, &token("us".into(), "broker".into())).is_ok());
    assert_eq!(check(&tokens, &token("us".into(), json!(["x"]))), Err(TokenFault::Audience));
    assert_eq!(check(&tokens, &token("them".into(), "broker".into())), Err(TokenFault::Issuer));
    let without = hs256(&json!({ "name": "bob", "exp": now + 60, "iss": "us" }));
    assert_eq!(check(&tokens, &without), Err(TokenFault::Audience));
}

/// A client that says it is somebody else than its token does is not guessed about; 3.1.1 has no password without a user name.
#[test]
fn the_user_name_of_the_connect_is_that_of_the_token_or_nothing() {
    let tokens = Files::new().secret().tokens();
    let token = hs256(&good());
    let check = |name| tokens.check(token.as_bytes(), name, "c1", NOW_MS);
    assert!(check(None).is_ok() && check(Some("")).is_ok() && check(Some("alice")).is_ok());
    assert_eq!(check(Some("bob")), Err(TokenFault::OtherUser));
}

#[test]
fn what_is_no_token_is_malformed_and_never_a_panic() {
    let tokens = Files::new().secret().tokens();
    let whole = hs256(&good());
    let long = format!("{whole}{}", "A".repeat(TOKEN_BYTES_MAX));
    assert_eq!(check(&tokens, &long), Err(TokenFault::TooLong));
    let parts: Vec<&str> = whole.split('.').collect();
    for text in [
        "".to_owned(),
        "..".to_owned(),
        "eyJ..".to_owned(),
        parts[..2].join("."),
        format!("{whole}.x"),
        format!("{whole}="),
        whole.replacen('.', ". ", 1),
        format!("{}=.{}.{}", parts[0], parts[1], parts[2]),
        format!("{}.{}.{}", URL_SAFE_NO_PAD.encode("[]"), parts[1], parts[2]),
        format!("{}.{}.{}", URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","alg":"HS256"}"#), parts[1], parts[2]),
    ] {
        assert_eq!(check(&tokens, &text), Err(TokenFault::Malformed), "{text}");
    }
    for extension in ["crit", "b64", "enc"] {
        let token = signed(&json!({ "alg": "HS256", extension: ["exp"] }), &good());
        assert_eq!(check(&tokens, &token), Err(TokenFault::Critical), "{extension}");
    }
    for len in 0..whole.len() {
        assert!(check(&tokens, &whole[..len]).is_err());
    }
}

#[test]
fn rules_of_a_token_name_the_client_and_nobody_else() {
    let tokens = Files::new().secret().tokens();
    let token = |acl: &Value| hs256(&json!({ "sub": "alice", "exp": NOW_MS / 1_000 + 60, "acl": acl }));
    let rule = |topic: &str| json!([{ "permission": "allow", "action": "all", "topic": topic }]);
    for bad in [
        json!([{ "permission": "allow", "action": "all" }]),
        json!([{ "permission": "maybe", "action": "all", "topic": "a" }]),
        json!([{ "permission": "allow", "action": "read", "topic": "a" }]),
        json!([{ "permission": "allow", "action": "all", "topic": "a", "qos": 1 }]),
        rule("a/#/b"),
        rule(""),
    ] {
        assert_eq!(check(&tokens, &token(&bad)), Err(TokenFault::Rules), "{bad}");
    }
    let who = Who { user: Some("alice"), client_id: "c1" };
    let many = |count| ClientRules::read(&Value::Array(vec![rule("a")[0].clone(); count]), who);
    assert!(many(256).is_some() && many(257).is_none());
    // CVE-2017-7650: a name that is a wildcard fills in no rule.
    let named = token(&rule("home/%c"));
    assert!(tokens.check(named.as_bytes(), None, "c1", NOW_MS).is_ok());
    for client_id in ["#", "+", "a+b"] {
        assert_eq!(tokens.check(named.as_bytes(), None, client_id, NOW_MS), Err(TokenFault::Rules));
    }
}

#[test]
fn files_without_a_usable_key_are_refused_and_not_repeated() {
    let mut short = Files::new().secret();
    short.1.jwt_secret_file = Some(short.put("short", "only thirty-one bytes of secret"));
    assert!(short.refused().contains("fewer than 32 bytes") && !short.refused().contains("thirty"));
    let weak = r#"{"kty":"oct","k":"c2hvcnQ"}"#;
    for (files, what) in [
        (Files::new().pem("nothing"), "PUBLIC KEY"),
        (Files::new().pem(&PEM.replace("BzYHKoZ", "AAAAAAA").replace("MFkw", "MFkx")), "neither RSA nor"),
        (Files::new().set(&[]), "has not 1 to 64 keys"),
        (Files::new().set(&[r#"{"kty":"OKP","crv":"Ed25519","x":"AA"}"#]), "has not 1 to 64 keys"),
        (Files::new().set(&[&EC.replace("\"kid\"", "\"use\":\"enc\",\"kid\"")]), "has not 1 to 64 keys"),
        (Files::new().set(&[weak]), "key 0: k has fewer"),
        (Files::new().set(&[r#"{"kty":"RSA","n":"AQAB","e":"AQAB"}"#]), "key 0: n has not"),
        (Files::new().set(&[r#"{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}"#]), "key 0: x and y"),
    ] {
        assert!(files.refused().contains(what), "{what}: {}", files.refused());
    }
    assert!(!format!("{:?}", Files::new().secret().tokens()).contains("0123456789abcdef"));
}
