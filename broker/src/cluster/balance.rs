//! Spreads the leaders of the groups over the nodes (DESIGN §5): each node looks at its own and hands one over when another voter leads
//! less. A step is taken only when two looks in a row find it, so that a cluster that is just changing is left alone.

use std::sync::Arc;
use std::time::Duration;

use storage::Store;

use super::calls::PeerCalls;

/// Distance of two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Looks until the task is dropped.
pub async fn balance_forever(store: Store, peers: Arc<dyn PeerCalls>) {
    let mut found = None;
    loop {
        tokio::time::sleep(LOOK).await;
        let step = store.next_hand_over(&peers.reachable());
        let again = step.is_some() && step == found;
        found = step;
        let Some((group, to)) = step.filter(|_| again) else { continue };
        found = None;
        match store.hand_over(group, to).await {
            Ok(()) => tracing::info!(group = group.0, to, "another node leads the group now"),
            Err(error) => tracing::debug!(group = group.0, to, %error, "a group is not handed over yet"),
        }
    }
}
