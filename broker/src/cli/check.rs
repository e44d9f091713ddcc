//! What a configuration needs beside itself: asked by `exactmq check-config`, and by a start before it makes anything.

use crate::admin::{AdminTls, AdminToken, read_further};
use crate::auth::{Acl, PasswordFile, ScramFile, Tokens, check_hooks};
use crate::cluster::link;
use crate::config::{ConfigError, LeaseHome, Loaded, Origin, Problem};
use crate::node::{etcd_options, tls};

/// Reads every file that the configuration names and asks whether this build has what it asks for. Makes and changes nothing.
///
/// # Errors
/// Every fault that was found.
pub(super) fn beside(loaded: Loaded) -> Result<Loaded, ConfigError> {
    let config = &loaded.config;
    let mut problems = Vec::new();
    if let Err(error) = link::check(&config.cluster) {
        let origin = loaded.origins.get(error.key()).cloned().unwrap_or(Origin::Default);
        problems.push(Problem { origin, message: error.to_string() });
    }
    let mut problem = |key: &str, message: String| {
        let origin = loaded.origins.get(key).cloned().unwrap_or(Origin::Default);
        problems.push(Problem { origin, message: format!("{key}: {message}") });
    };
    if let Some(Err(error)) = config.auth.password_file.as_deref().map(PasswordFile::read) {
        problem("auth.password_file", error.to_string());
    }
    if let Some(Err(error)) = config.auth.scram_file.as_deref().map(ScramFile::read) {
        problem("auth.scram_file", error.to_string());
    }
    if let Err(error) = check_hooks(config) {
        problem("auth.http_ca_file", error.to_string());
    }
    if let Err(error) = Tokens::read(&config.auth) {
        problem("auth.jwt_*", error.to_string());
    }
    if let Some(Err(error)) = config.acl.file.as_deref().map(Acl::read) {
        problem("acl.file", error.to_string());
    }
    for (name, listener) in config.listeners.iter().filter(|(_, listener)| listener.protocol.is_secure()) {
        if let Err(error) = tls(name, listener) {
            problem(&format!("listener.{name}.tls_cert"), error.to_string());
        }
    }
    if let Err(error) = crate::trace::check(config) {
        problem("log.otlp_endpoint", error.to_string());
    }
    for error in crate::bridge::check(config) {
        problem("bridge", error.to_string());
    }
    if !config.storage.engine.is_compiled_in() {
        problem("storage.engine", "this build of exactmq does not have the engine".to_owned());
    }
    if config.queue.leases == LeaseHome::Etcd
        && let Err(error) = etcd_options(config, [0; 16])
    {
        problem(error.key(), error.to_string());
    }
    let token_file = config.token_file();
    if config.admin.address.0.is_some()
        && token_file.exists()
        && let Err(error) = AdminToken::read(&token_file)
    {
        problem("admin.token_file", error.to_string());
    }
    if config.admin.address.0.is_some() {
        if let Err(error) = read_further(config) {
            problem("admin.tokens_file", error.to_string());
        }
        if let Err(error) = AdminTls::read(&config.admin) {
            problem("admin.tls_cert", error);
        }
    }
    if problems.is_empty() { Ok(loaded) } else { Err(ConfigError { problems }) }
}
