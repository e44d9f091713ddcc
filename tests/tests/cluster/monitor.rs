//! The queue monitor on three processes: every node tells the same, at once.

use super::{Cluster, durable};
use serde_json::Value;
use std::time::Duration;
use tests::{Client, Node, Options, eventually};

/// Rows of a table, as a node tells them, without what is counted down, and what only the node of the consumer knows.
fn rows(node: &Node, table: &str, query: &str) -> Vec<Value> {
    let page: Value = serde_json::from_str(&node.admin_get(&format!("/v1/{table}?{query}"))).expect("JSON");
    let mut rows = page[table].as_array().expect("rows").clone();
    for row in &mut rows {
        row["lease_left_ms"] = Value::Null;
        row["in_flight"] = Value::Null;
    }
    rows
}

/// R-18 on three nodes: a backlog that was acknowledged through one is told exactly by all, and so is who consumes it and where.
#[test]
fn r18_every_node_tells_the_same_channels_and_members() {
    let cluster = Cluster::of_three();
    let nodes = [1, 2, 3].map(|id| cluster.node(id));
    let mut reader = Client::connect(nodes[2].mqtt, &durable("reader"));
    assert_eq!(reader.subscribe("t", 1), 1);
    reader.disconnect();
    let mut member = Client::connect(nodes[0].mqtt, &durable("member"));
    assert_eq!(member.subscribe("$share/g/s", 1), 1);
    let mut publisher = Client::connect(nodes[1].mqtt, &Options::v5("publisher"));
    for number in 1..=3_u64 {
        assert_eq!(publisher.publish("t", "payload", 1, false), 0);
        for node in nodes {
            let told = rows(node, "channels", "name=reader");
            assert_eq!((told.len(), &told[0]["messages"]), (1, &number.into()), "{told:?}");
        }
    }
    let offline = |node: &&Node| rows(node, "members", "status=offline&name=reader").len() == 1;
    eventually("the end of the reader's connection is recorded", Duration::from_secs(20), || {
        nodes.iter().all(offline).then_some(())
    });
    for (table, query) in [("channels", "sort=kind,messages:desc,name"), ("members", "sort=channel")] {
        let told = nodes.map(|node| rows(node, table, query));
        assert_eq!(told[0].len(), 3, "{table}: {:?}", told[0]);
        assert!(told[0] == told[1] && told[1] == told[2], "{table}: {told:?}");
    }
    let share = rows(nodes[1], "members", "kind=share");
    assert_eq!((&share[0]["channel"], &share[0]["node_id"]), (&"$share/g/s".into(), &1.into()));
}
