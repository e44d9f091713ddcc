//! Denials, as operators ask for them: a user's is committed in every group, a ClientID's in its own.

use std::sync::Arc;

use session::id::Key;
use session::lifecycle::{Command, Conflict, DenyRow, Reply, Subject};
use session::time::Millis;
use storage::GroupId;

use super::operator::Operator;
use crate::admin::{DeniedPage, DeniedView, DenyCommand, PortError};

impl Operator {
    pub(super) async fn deny_now(&self, command: DenyCommand) -> Result<(), PortError> {
        let row = DenyRow {
            subject: command.subject,
            since: self.shared.clock.millis(),
            until: command.until.unwrap_or(Millis::NEVER),
            reason: command.reason,
        };
        let groups = self.groups_of(&row.subject);
        self.commit_in(groups, Command::Deny(Box::new(row))).await.map(drop)
    }

    pub(super) async fn allow_now(&self, subject: Subject) -> Result<bool, PortError> {
        let groups = self.groups_of(&subject);
        self.commit_in(groups, Command::Allow(subject)).await
    }

    fn groups_of(&self, subject: &Subject) -> Vec<GroupId> {
        match subject {
            Subject::User(_) => (0..self.shared.store.groups()).map(GroupId).collect(),
            Subject::Client(key) => vec![self.shared.store.group_of(key)],
        }
    }

    /// Whether it changed anything in any group.
    async fn commit_in(&self, groups: Vec<GroupId>, command: Command) -> Result<bool, PortError> {
        let commits = groups.into_iter().map(|group| {
            let (store, command) = (self.shared.store.clone(), command.clone());
            tokio::spawn(async move { store.call(group, command).await })
        });
        let commits: Vec<_> = commits.collect();
        let mut changed = false;
        for commit in commits {
            let reply = commit.await.map_err(|error| PortError::Unavailable(error.to_string()))?;
            match reply.map_err(|error| PortError::Unavailable(error.to_string()))? {
                Reply::Done { unchanged, .. } => changed |= !unchanged,
                Reply::Conflict(Conflict::Quota) => {
                    let most = session::limits::DENIED_MAX;
                    return Err(PortError::Limit(format!("{most} denials are there already; remove some")));
                }
                Reply::Conflict(conflict) => return Err(PortError::Unavailable(conflict.to_string())),
                other => return Err(PortError::Unavailable(format!("an answer that cannot be: {other:?}"))),
            }
        }
        Ok(changed)
    }

    pub(super) async fn denied_page(
        &self,
        after: Option<&Subject>,
        limit: usize,
    ) -> Result<DeniedPage, PortError> {
        let store = &self.shared.store;
        // Users sort before ClientIDs; they are the same in all groups, so one group tells them.
        let first_client = Subject::Client(Key { namespace: "".into(), client_id: "".into() });
        let mut found: Vec<DenyRow> = Vec::new();
        for group in (0..store.groups()).map(GroupId) {
            self.newest(group).await?;
            let from = if group.0 == 0 { after } else { after.max(Some(&first_client)) };
            store.read(group, |rows| found.extend(rows.denied_after(from).take(limit + 1).cloned()));
        }
        found.sort_by(|left, right| left.subject.cmp(&right.subject));
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).map(|row| row.subject.clone());
        Ok(DeniedPage { denied: found.iter().map(|row| self.denied_view(row)).collect(), next })
    }

    fn denied_view(&self, row: &DenyRow) -> DeniedView {
        let holds = |group: &GroupId| {
            self.shared.store.read(*group, |rows| rows.denial(&row.subject).is_some_and(|known| known == row))
        };
        let complete = self.groups_of(&row.subject).iter().all(holds);
        let (user, key) = match &row.subject {
            Subject::User(user) => (Some(user.clone()), None),
            Subject::Client(key) => (None, Some(key)),
        };
        DeniedView {
            user,
            namespace: key.map(|key| Arc::clone(&key.namespace)),
            client_id: key.map(|key| Arc::clone(&key.client_id)),
            since_ms: row.since.0,
            until_ms: (row.until != Millis::NEVER).then_some(row.until.0),
            reason: row.reason.clone(),
            complete,
        }
    }
}
