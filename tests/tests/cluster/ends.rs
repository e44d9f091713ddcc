//! P3, P6: an End from another node than the owner's does what one at the owner's node does.

use std::time::Duration;

use super::Cluster;
use tests::client::PATIENCE;
use tests::{Client, Options};

const DISCONNECT: u8 = 14;
const ADMINISTRATIVE_ACTION: u8 = 0x98;

/// P3, P6, scenario 28: from every node, for durable sessions and others: the Will is published once, or, suppressed, never; the client is told
/// why it ends.
#[test]
fn p6_an_end_from_another_node_suppresses_the_will() {
    let cluster = Cluster::of_three();
    let mut watcher = Client::connect(cluster.node(3).mqtt, &Options::v5("watcher"));
    assert_eq!(watcher.subscribe("will/#", 1), 1);
    let mut published = Vec::new();
    for (round, (owner, operator)) in [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (2, 3)].into_iter().enumerate()
    {
        for (expiry, will) in [(0, "suppress"), (300, "suppress"), (0, "publish"), (300, "publish")] {
            let id = format!("c-{round}-{expiry}-{will}");
            let options = Options::v5(&id).expiry(expiry).will(&format!("will/{id}"), "gone", 1, false, 0);
            let mut client = Client::connect(cluster.node(owner).mqtt, &options);
            let output = cluster.node(operator).cli(&["session", "end", &id, "--will", will]);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let said = client.until_closed(PATIENCE);
            let last = said.iter().find(|packet| packet.kind() == DISCONNECT).expect("DISCONNECT");
            assert_eq!(last.body[0], ADMINISTRATIVE_ACTION, "{id} from node {operator}");
            published.extend((will == "publish").then(|| format!("will/{id}")));
        }
    }
    let mut got: Vec<String> = published.iter().map(|_| watcher.take_message().topic).collect();
    got.sort();
    published.sort();
    assert_eq!(got, published);
    assert_eq!(watcher.poll(Duration::from_millis(500)), Ok(None), "a suppressed Will never comes");
}
