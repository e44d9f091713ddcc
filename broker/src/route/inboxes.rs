//! The members of shared subscriptions as the use cases see them.

use super::router::Router;
use crate::usecase::rebind::{ShareInbox, ShareMembers};

impl ShareMembers for Router {
    fn inboxes(&self, filter: &str, topic: Option<&str>) -> Vec<ShareInbox> {
        let Some(group) = self.share(filter) else { return Vec::new() };
        let readers = self.readers();
        let members = group
            .members
            .iter()
            .filter(|member| topic.is_none_or(|topic| readers.may_read(&member.subscriber, topic)));
        let inboxes = members.filter_map(|member| {
            let (group, lifetime) = member.subscriber.inbox?;
            let options = &member.options;
            Some(ShareInbox {
                group,
                lifetime,
                qos: options.qos,
                retain_as_published: options.retain_as_published,
                identifier: options.identifier,
            })
        });
        inboxes.collect()
    }
}
