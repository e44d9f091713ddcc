//! What a running node is told when its users were edited: take them in now, and what a removed one left behind is to end.

use serde_json::{Value, json};

use super::super::end::{finish, told};
use super::super::error::CliError;
use super::super::http::{Client, query};
use super::super::output::{cell, print, visible};
use super::super::{DATA_DIR, Remote};
use crate::admin::ADDRESS_FILE;

/// Kept with the denial of a user that was removed from a cluster: adding the user again takes it back.
const REMOVED: &str = "user removed";
/// What changed files of users are called in the answer to a reload.
const CHANGED: &str = "the content of auth.";
/// Denials asked for at a time.
const PAGE: &str = "1000";

/// The node beside the edited file, and whether it has to be there.
pub(in crate::cli) struct Running {
    client: Client,
    address: String,
    /// It was named, so it not answering is a failure.
    named: bool,
}

impl Running {
    /// The node that the flags name, or that ran on the data directory; `None`: there is none to tell.
    pub(in crate::cli) fn find(remote: &Remote) -> Result<Option<Self>, CliError> {
        let named = remote.admin.is_some() || remote.data_dir.as_os_str() != DATA_DIR;
        if remote.admin.is_none() && !remote.data_dir.join(ADDRESS_FILE).exists() {
            return Ok(None);
        }
        let client = Client::new(remote)?;
        let address = client.authority().to_owned();
        Ok(Some(Self { client, address, named }))
    }

    /// Where the node is, `host:port`.
    pub(in crate::cli) fn address(&self) -> &str {
        &self.address
    }

    /// The new user, or the new password, is in force when this returns.
    pub(super) fn added(&self, user: &str) -> Result<(), CliError> {
        let Some(changed) = self.reload(CHANGED)? else { return Ok(()) };
        if changed {
            print(&format!("in force at {}\n", self.address));
        }
        if self.is_denied_as_removed(user)? {
            let parameters = [("user", Some(user.to_owned()))];
            self.client.delete(&format!("/v1/denied{}", query(&parameters)))?;
            print(&format!("{} may connect again on all nodes\n", visible(user)));
        }
        Ok(())
    }

    /// When this returns the user has no connection, no stored session and no queued message, on any node.
    pub(super) fn removed(&self, user: &str) -> Result<(), CliError> {
        match self.reload(CHANGED)? {
            None => return Ok(()),
            Some(true) => print(&format!("in force at {}\n", self.address)),
            Some(false) => {
                let why = format!(
                    "the node at {} does not use this file, or had taken the change in before: if it is the right one, \
                     `exactmq session end --user {}` ends what the user has there",
                    self.address,
                    visible(user)
                );
                return Err(CliError::failed(&why));
            }
        }
        if self.has_other_nodes()? {
            self.client.post("/v1/denied", &json!({ "user": user, "reason": REMOVED }))?;
            print(&format!(
                "{} is denied on all nodes until it is added again, or `exactmq deny remove --user`; remove it from the files of \
                 the other nodes too\n",
                visible(user)
            ));
        }
        let job = self.client.post("/v1/end", &json!({ "user": user, "reason": "revoked" }))?;
        let ended = finish(&self.client, job)?;
        print(&told(&ended));
        super::super::end::outcome(&ended)
    }

    /// Whether the node runs with the edited file, whose change begins with `what`, from now on; false: it is none of its files, or it had the
    /// change already. `None`: nobody answers there, and nobody said that somebody would.
    pub(in crate::cli) fn reload(&self, what: &str) -> Result<Option<bool>, CliError> {
        let done = match self.client.post("/v1/reload", &Value::Null) {
            Ok(done) => done,
            Err(error) if error.is_unreachable() && !self.named => {
                eprintln!("no node runs at {}; it takes the change in when it starts", self.address);
                return Ok(None);
            }
            Err(error) => return Err(error.after("the file is changed, but the node did not take it in: ")),
        };
        let is_it = |one: &Value| one.as_str().is_some_and(|one| one.starts_with(what));
        let changed = done.get("changed").and_then(Value::as_array).is_some_and(|all| all.iter().any(is_it));
        Ok(Some(changed))
    }

    /// What there is to say of a user that stands in no file: nothing was ended, and whether there is something to end.
    pub(super) fn unknown(&self, user: &str) -> String {
        let end = format!("`exactmq session end --user {} --reason revoked --deny`", visible(user));
        match self.has_sessions(user) {
            Ok(false) => format!("the node at {} has no session of it", self.address),
            Ok(true) => format!(
                "the node at {} has sessions of it, which a token, a certificate or a hook let in, or which are left from before: they \
                 go on; {end} ends them",
                self.address
            ),
            Err(_) => format!(
                "the node at {} could not be asked whether it has sessions of it; {end} ends them",
                self.address
            ),
        }
    }

    /// Whether the user has a session that is not ended.
    fn has_sessions(&self, user: &str) -> Result<bool, CliError> {
        for state in ["active", "offline"] {
            let mut cursor = None;
            loop {
                let parameters = [
                    ("user", Some(user.to_owned())),
                    ("state", Some(state.to_owned())),
                    ("limit", Some("1".to_owned())),
                    ("cursor", cursor),
                ];
                let page = self.client.get(&format!("/v1/sessions{}", query(&parameters)))?;
                if page.get("sessions").and_then(Value::as_array).is_some_and(|found| !found.is_empty()) {
                    return Ok(true);
                }
                cursor = page.get("cursor").and_then(Value::as_str).map(str::to_owned);
                if cursor.is_none() {
                    break;
                }
            }
        }
        Ok(false)
    }

    fn has_other_nodes(&self) -> Result<bool, CliError> {
        let cluster = self.client.get("/v1/cluster")?;
        Ok(cluster.get("nodes").and_then(Value::as_array).is_some_and(|nodes| nodes.len() > 1))
    }

    fn is_denied_as_removed(&self, user: &str) -> Result<bool, CliError> {
        let mut cursor = None;
        loop {
            let parameters = [("limit", Some(PAGE.to_owned())), ("cursor", cursor)];
            let page = self.client.get(&format!("/v1/denied{}", query(&parameters)))?;
            let denied = page.get("denied").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let of_user = denied.iter().find(|one| one.get("user").and_then(Value::as_str) == Some(user));
            if let Some(denial) = of_user {
                return Ok(cell(denial, "reason") == REMOVED);
            }
            cursor = page.get("cursor").and_then(Value::as_str).map(str::to_owned);
            if cursor.is_none() {
                return Ok(false);
            }
        }
    }
}
