//! The queue monitor over a whole node in this process: what `/v1/channels`, `/v1/members` and `exactmq queue` tell is what there is
//! (DESIGN §9 "Monitor"; lease spec §9, R-18; checklist §16 items 14 and 20).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod operator;
mod support;

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::admin::{ChannelColumn, ChannelId, ChannelKind, ChannelState, Order, RoleWord, StatusWord};
use broker::config::{Config, Sources};
use broker::node::{Node, Stopped};
use operator::{Api, FakeBroker};
use serde_json::{Value, json};
use session::queue::QueueCommand;
use storage::GroupId;
use storage::lease::{LeaseBackend, TableBackend};
use storage::queue::{
    ChanRole, ChanType, ChannelConfig, ChannelStore, Consumer, EmbeddedStore, Item, MemoryStore, Producer,
    QueueOptions, QueueStore, new_or_bind_with_unique_key,
};

use support::client::Client;

const PATIENCE: Duration = Duration::from_secs(20);

/// A node with its data directory.
struct Bench {
    node: Node,
    dir: tempfile::TempDir,
}

impl Bench {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let flags = [
            ("node.data_dir", dir.path().to_str().unwrap()),
            ("listener.mqtt.address", "127.0.0.1:0"),
            ("admin.address", "127.0.0.1:0"),
            ("node.workers", "1"),
            ("node.sys_interval_s", "1"),
            ("storage.segment_bytes", "1048576"),
        ];
        let flags = flags.map(|(key, value)| ("--set".to_owned(), key.to_owned(), value.to_owned())).to_vec();
        let config = Config::load(&Sources { file: None, environment: Vec::new(), flags }).unwrap().config;
        Self { node: Node::start(&config).await.unwrap(), dir }
    }

    async fn end(self) {
        assert_eq!(self.node.stop(Duration::from_secs(10)).await, Stopped::Graceful);
    }

    fn queues(&self) -> &QueueStore {
        &self.node.shared().queues
    }

    async fn client(&self, client_id: &str, expiry_sec: u32) -> Client {
        let mut client = Client::dial(self.node.address("mqtt").unwrap()).await;
        client.connect(client_id, expiry_sec).await;
        client
    }

    /// Status and body of a call of the admin API.
    async fn get(&self, path: &str) -> (u16, String) {
        let address = self.node.admin_address().unwrap();
        let token = operator::read(&self.dir.path().join("admin.token"));
        let path = path.to_owned();
        tokio::task::spawn_blocking(move || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            write!(
                stream,
                "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
            )
            .unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
        })
        .await
        .unwrap()
    }

    /// Rows of a page of `/v1/channels` or `/v1/members`, and its cursor.
    async fn page(&self, table: &str, query: &str) -> (Vec<Value>, Option<String>) {
        let (status, body) = self.get(&format!("/v1/{table}?{query}")).await;
        assert_eq!(status, 200, "{body}");
        let page: Value = serde_json::from_str(&body).unwrap();
        (page[table].as_array().unwrap().clone(), page["cursor"].as_str().map(str::to_owned))
    }

    async fn rows(&self, table: &str, query: &str) -> Vec<Value> {
        let (rows, cursor) = self.page(table, query).await;
        assert_eq!(cursor, None, "they fit one page");
        rows
    }

    /// The only row of a query.
    async fn only(&self, table: &str, query: &str) -> Value {
        let rows = self.rows(table, query).await;
        assert_eq!(rows.len(), 1, "{table}?{query}: {rows:?}");
        rows.into_iter().next().unwrap()
    }

    /// The same, as soon as it is as wanted.
    async fn until(&self, table: &str, query: &str, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let rows = self.rows(table, query).await;
            if wanted(&rows) {
                return rows;
            }
            assert!(Instant::now() < deadline, "{table}?{query} stays {rows:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The command line on this data directory.
    async fn cli(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(PathBuf::from(env!("CARGO_BIN_EXE_exactmq")));
        command.args(arguments).arg("--data-dir").arg(self.dir.path());
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    async fn producer(&self, name: &str, of: ChanType) -> Producer {
        let config = config();
        let bound = new_or_bind_with_unique_key(self.queues(), &config, name, of, ChanRole::Producer).await;
        bound.unwrap().producer().unwrap()
    }

    async fn consumer(&self, name: &str, of: ChanType) -> Consumer {
        let config = config();
        let bound = new_or_bind_with_unique_key(self.queues(), &config, name, of, ChanRole::Consumer).await;
        bound.unwrap().consumer().unwrap()
    }
}

fn config() -> ChannelConfig {
    ChannelConfig { credit: 4, ..ChannelConfig::new(100, Duration::from_secs(60)) }
}

async fn put(producer: &Producer, count: u8) {
    for number in 0..count {
        producer.put_data([number; 10]).await.unwrap();
    }
}

async fn take(consumer: &Consumer, count: usize) -> Vec<Item> {
    let mut items = Vec::new();
    while items.len() < count {
        items.extend(consumer.get_data(count - items.len(), Some(PATIENCE), 0).await.unwrap());
    }
    items
}

/// Fields of a row, in this order.
fn fields<const N: usize>(row: &Value, names: [&str; N]) -> [Value; N] {
    names.map(|name| row.get(name).unwrap_or_else(|| panic!("no {name} in {row}")).clone())
}

/// the backlog is counted before the first acknowledgement, and exactly after it; so is that of MPMC channels and groups.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r18_the_backlog_of_queue_channels_is_exact() {
    let bench = Bench::start().await;
    let jobs = bench.producer("jobs", ChanType::Mpsc).await;
    put(&jobs, 5).await;
    let row = bench.only("channels", "name=JOB").await;
    assert_eq!(
        fields(
            &row,
            ["kind", "state", "messages", "bytes", "base", "end", "producers", "consumers", "epoch"]
        ),
        [json!("mpsc"), json!("open"), json!(5), json!(50), json!(0), json!(5), json!(1), json!(0), json!(0)]
    );
    assert_eq!(
        fields(&row, ["consumer", "lease", "lease_left_ms", "messages_max", "ttl_ms", "parent", "claimed"]),
        [json!(null), json!("delegated"), json!(null), json!(100), json!(60_000), json!(null), json!(null)]
    );
    let reader = bench.consumer("jobs", ChanType::Mpsc).await;
    let items = take(&reader, 3).await;
    reader.ack(&[items[0].id, items[2].id]).await.unwrap();
    let row = bench.only("channels", "name=jobs").await;
    assert_eq!(
        fields(&row, ["messages", "bytes", "base", "epoch"]),
        [json!(3), json!(30), json!(1), json!(1)]
    );
    let member =
        bench.only("members", &format!("channel={}&role=consumer", row["channel"].as_str().unwrap())).await;
    assert_eq!(member["member"], row["consumer"]);

    let work = bench.producer("work", ChanType::Mpmc).await;
    let readers =
        [bench.consumer("work", ChanType::Mpmc).await, bench.consumer("work", ChanType::Mpmc).await];
    put(&work, 6).await;
    let row = bench.only("channels", "kind=mpmc").await;
    assert_eq!(
        fields(&row, ["messages", "bytes", "subchannels", "producers", "consumers", "end"]),
        [json!(6), json!(60), json!(2), json!(1), json!(2), json!(null)]
    );
    let subs = bench.rows("channels", "kind=sub").await;
    assert_eq!(subs.iter().map(|sub| sub["messages"].as_u64().unwrap()).sum::<u64>(), 6);
    assert!(
        subs.iter().all(|sub| sub["parent"] == row["channel"] && sub["consumer"].is_string()),
        "{subs:?}"
    );

    let crew = bench.producer("crew", ChanType::Group).await;
    let hand = bench.consumer("crew", ChanType::Group).await;
    put(&crew, 5).await;
    let items = take(&hand, 2).await;
    let row = bench.only("channels", "kind=group").await;
    assert_eq!(fields(&row, ["messages", "claimed"]), [json!(5), json!(2)]);
    hand.ack(&[items[0].id]).await.unwrap();
    let row = bench.only("channels", "kind=group&min_messages=4").await;
    assert_eq!(fields(&row, ["messages", "claimed", "discarded"]), [json!(4), json!(1), json!(0)]);
    assert!(bench.rows("channels", "kind=group&min_messages=5").await.is_empty());
    let member = bench.only("members", "kind=group&role=consumer").await;
    assert_eq!(fields(&member, ["claims", "credit"]), [json!(1), json!(4)]);
    drop(readers);
    bench.end().await;
}

/// Lease spec 9.3, 15.10: members with their roles, appends and leases; when the last one goes, the channel's lease runs down, and
/// (checklist 20) nothing is listed of a channel that was deleted and reclaimed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checklist_20_members_go_and_then_their_channel() {
    let bench = Bench::start().await;
    let producer = bench.producer("jobs", ChanType::Mpsc).await;
    let consumer = bench.consumer("jobs", ChanType::Mpsc).await;
    put(&producer, 3).await;
    let rows = bench.rows("members", "sort=role:desc").await;
    assert_eq!(
        fields(
            &rows[0],
            ["role", "kind", "status", "appends", "waiting", "lease", "standing", "weight", "credit"]
        ),
        [
            json!("producer"),
            json!("mpsc"),
            json!("alive"),
            json!(3),
            json!(false),
            json!("held"),
            json!("held"),
            json!(1),
            json!(null)
        ]
    );
    assert_eq!(
        fields(&rows[1], ["role", "appends", "standing"]),
        [json!("consumer"), json!(null), json!("held")]
    );
    let shared = bench.node.shared();
    let label = format!("node 1, boot {}", shared.boot.boot_id);
    for row in &rows {
        assert_eq!(row["name"], json!(label));
        let left = row["lease_left_ms"].as_u64().unwrap();
        assert!(left > 0 && left <= 16_000, "{left} ms are left of a lease of 15 s and its grace");
        assert!(row["keepalive_lag_ms"].as_u64().unwrap() < 15_000);
    }
    consumer.close().await.unwrap();
    producer.close().await.unwrap();
    assert!(bench.rows("members", "").await.is_empty());
    let row = bench.only("channels", "").await;
    assert_eq!(fields(&row, ["lease", "messages", "producers"]), [json!("armed"), json!(3), json!(0)]);
    let left = row["lease_left_ms"].as_u64().unwrap();
    assert!(left > 0 && left <= 61_000, "{left} ms are left of a TTL of 60 s and its grace");

    let (group, channel) = producer.chan_id();
    let delete = session::lifecycle::Command::Queue(QueueCommand::Delete { channel });
    shared.store.call(GroupId(group), delete).await.unwrap();
    bench.until("channels", "", |rows| rows.is_empty()).await;
    let stat = shared.store.read(GroupId(group), |rows| rows.space().stat());
    assert_eq!((stat.channels, stat.messages, stat.reclaimable), (0, 0, 0));
    bench.end().await;
}

/// DESIGN §9: an inbox is a channel to an operator, and a shared subscription is one. Checklist 24: what is left of an offline session is
/// what its client asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checklist_24_inboxes_and_shared_subscriptions_are_channels() {
    let bench = Bench::start().await;
    let mut reader = bench.client("Reader/1", 300).await;
    reader.subscribe("t/#", 1).await;
    let row = bench.only("channels", "kind=inbox").await;
    assert_eq!(
        fields(&row, ["channel", "consumer", "lease", "epoch", "consumers", "messages", "node_id", "ttl_ms"]),
        [
            json!("inbox/main/Reader%2F1/1"),
            json!("session/main/Reader%2F1/1"),
            json!("delegated"),
            json!(1),
            json!(1),
            json!(0),
            json!(1),
            json!(300_000)
        ]
    );
    drop(reader);
    bench.until("members", "kind=inbox&status=offline", |rows| rows.len() == 1).await;
    let mut publisher = bench.client("publisher", 0).await;
    for _ in 0..3 {
        publisher.publish("t/1", b"payload", 1).await;
    }
    let row = bench.only("channels", "name=reader").await;
    let bytes = shared_bytes(&bench, "Reader/1");
    assert_eq!(
        fields(&row, ["state", "consumer", "lease", "messages", "bytes", "messages_max"]),
        [json!("open"), json!(null), json!("armed"), json!(3), json!(bytes), json!(10_000)]
    );
    let left = row["lease_left_ms"].as_u64().unwrap();
    assert!(left > 200_000 && left <= 300_000, "{left} ms are left of 300 s");

    let mut first = bench.client("first", 300).await;
    first.subscribe("$share/g/s/#", 1).await;
    let mut second = bench.client("second", 300).await;
    second.subscribe("$share/g/s/#", 1).await;
    second.subscribe("$share/h/s", 1).await;
    drop(second);
    let rows = bench.rows("channels", "kind=share").await;
    let told = rows.iter().map(|row| fields(row, ["channel", "consumers", "messages"])).collect::<Vec<_>>();
    assert_eq!(
        told,
        [[json!("$share/g/s/#"), json!(2), json!(null)], [json!("$share/h/s"), json!(1), json!(null)]]
    );
    let of_g = "channel=%24share%2Fg%2Fs%2F%23";
    let rows = bench.until("members", of_g, |rows| rows.iter().any(|row| row["status"] == "offline")).await;
    let told = rows.iter().map(|row| fields(row, ["member", "status", "lease", "epoch"])).collect::<Vec<_>>();
    assert_eq!(
        told,
        [
            [json!("session/main/first/1"), json!("alive"), json!("delegated"), json!(1)],
            [json!("session/main/second/1"), json!("offline"), json!("armed"), json!(1)]
        ]
    );
    assert_eq!(bench.rows("members", "channel=inbox%2Fmain%2Ffirst%2F1").await.len(), 1);
    assert!(bench.rows("members", "channel=inbox%2Fmain%2Ffirst%2F2").await.is_empty());
    bench.end().await;
}

/// Bytes in the inbox of a client, as the session itself is shown.
fn shared_bytes(bench: &Bench, client_id: &str) -> u64 {
    let store = &bench.node.shared().store;
    let key = operator::key(client_id);
    store.read(store.group_of(&key), |rows| {
        let lifetime = rows.session(&key).unwrap().lifetime;
        rows.inbox(lifetime).unwrap().bytes
    })
}

/// DESIGN §9: sorted by up to four fields, in pages that together are the whole list, whatever kind the rows are of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_together_are_the_whole_list_in_every_order() {
    let bench = Bench::start().await;
    let mut producers = Vec::new();
    for (name, count) in [("b", 2), ("a", 2), ("c", 4), ("d", 0)] {
        let producer = bench.producer(name, ChanType::Mpsc).await;
        put(&producer, count).await;
        producers.push(producer);
    }
    let mut clients = Vec::new();
    for client_id in ["e", "f", "g"] {
        let mut client = bench.client(client_id, 300).await;
        client.subscribe(&format!("$share/{client_id}/x"), 1).await;
        clients.push(client);
    }
    for sort in ["", "name", "name:desc", "messages:desc,name:asc", "kind,lease,group:desc,name:desc"] {
        for table in ["channels", "members"] {
            let sort = if table == "members" {
                sort.replace("messages", "appends").replace("group", "node_id")
            } else {
                sort.to_owned()
            };
            let sort = if sort.is_empty() { sort } else { format!("&sort={sort}") };
            let (whole, _) = bench.page(table, &format!("limit=1000{sort}")).await;
            assert_eq!(whole.len(), 10, "{table}{sort}");
            for limit in [1, 3] {
                let (mut found, mut cursor) = (Vec::new(), None::<String>);
                loop {
                    let behind = cursor.map_or_else(String::new, |cursor| format!("&cursor={cursor}"));
                    let (rows, next) = bench.page(table, &format!("limit={limit}{sort}{behind}")).await;
                    found.extend(rows);
                    cursor = next;
                    if cursor.is_none() {
                        break;
                    }
                }
                let id = |row: &Value| fields(row, ["channel", "kind", "name"]);
                let (found, whole): (Vec<_>, Vec<_>) =
                    (found.iter().map(id).collect(), whole.iter().map(id).collect());
                assert_eq!(found, whole, "{table}{sort} in pages of {limit}");
            }
        }
    }
    let rows = bench.rows("channels", "kind=mpsc&sort=messages:desc,name").await;
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["c", "a", "b", "d"]);
    let text = bench.cli(&["queue", "channels", "--kind", "mpsc", "--sort", "messages:desc,name"]).await;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("CHANNEL") && lines[1].contains(" c ") && lines.len() == 5, "{text}");
    let text = bench.cli(&["queue", "members", "--channel", "$share/f/x"]).await;
    assert!(
        text.contains("session/main/f/1") && text.contains("alive") && text.lines().count() == 2,
        "{text}"
    );
    let told: Value =
        serde_json::from_str(&bench.cli(&["queue", "channels", "--json", "--limit", "4"]).await).unwrap();
    assert!(told["channels"].as_array().unwrap().len() == 4 && told["cursor"].is_string(), "{told}");
    bench.end().await;
}

/// P10: a parameter that is not understood is refused with problem+json, and nobody is asked.
#[test]
fn parameters_that_are_not_understood_are_refused() {
    let broker = FakeBroker::with(&[]);
    let api = Api::start(&broker, |_| ());
    for query in [
        "channels?kind=queue",
        "channels?state=ended",
        "channels?min_messages=-1",
        "channels?min_messages=+1",
        "channels?min_messages=18446744073709551616",
        "channels?limit=0",
        "channels?limit=1001",
        "channels?sort=color",
        "channels?sort=name:up",
        "channels?sort=name,name",
        "channels?sort=kind,name,group,state,epoch",
        "channels?sort=",
        "channels?cursor=AAAA",
        "channels?channel=queue/0/1",
        "members?kind=x",
        "members?role=reader",
        "members?status=dead",
        "members?node=one",
        "members?channel=queue/0",
        "members?channel=inbox/main/x/y",
        "members?sort=messages",
        "members?cursor=!",
        "members?state=open",
    ] {
        let (status, head, body) = api.call("GET", &format!("/v1/{query}"), Some(&api.token()), "");
        assert!(status == 400 && head.contains("application/problem+json"), "{query}: {status} {body}");
        let problem: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(problem["code"], "invalid", "{query}");
        assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()));
    }
    for path in ["/v1/channels", "/v1/members"] {
        assert_eq!(api.call("GET", path, None, "").0, 401);
    }
    assert!(
        broker.channel_queries.lock().unwrap().is_empty() && broker.member_queries.lock().unwrap().is_empty()
    );
    let output = Command::new(env!("CARGO_BIN_EXE_exactmq"))
        .args(["queue", "channels", "--sort", "color", "--data-dir"])
        .arg(api.directory.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("sort=color is not one of kind, name"));
}

#[test]
fn what_is_asked_for_is_passed_on() {
    let broker = FakeBroker::with(&[]);
    let api = Api::start(&broker, |_| ());
    let (status, page) = api.json(
        "GET",
        "/v1/channels?kind=inbox&state=sealed&name=AbC&min_messages=3&limit=7&sort=messages:desc,name",
        "",
    );
    assert_eq!((status, page), (200, json!({ "channels": [], "cursor": null })));
    let query = broker.channel_queries.lock().unwrap().pop().unwrap();
    assert_eq!((query.kind, query.state), (Some(ChannelKind::Inbox), Some(ChannelState::Sealed)));
    assert_eq!((query.name.as_deref(), query.min_messages, query.limit), (Some("abc"), Some(3), 7));
    assert!(query.after.is_none() && query.order != Order::<ChannelColumn>::default());
    let (status, page) = api.json(
        "GET",
        "/v1/members?channel=queue/2/9&kind=mpmc&role=producer&status=alive&node=4&name=P",
        "",
    );
    assert_eq!((status, page), (200, json!({ "members": [], "cursor": null })));
    let query = broker.member_queries.lock().unwrap().pop().unwrap();
    assert_eq!(query.channel, Some(ChannelId::Queue { group: 2, channel: 9 }));
    assert_eq!((query.role, query.status), (Some(RoleWord::Producer), Some(StatusWord::Alive)));
    assert_eq!(
        (query.kind, query.node, query.name.as_deref()),
        (Some(ChannelKind::Mpmc), Some(4), Some("p"))
    );
}

/// Lease spec 15.10: metrics and `$SYS` tell of the queue layer and of the leases in its tables and in this process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_and_sys_topics_tell_of_queues_and_leases() {
    let bench = Bench::start().await;
    let producer = bench.producer("jobs", ChanType::Mpsc).await;
    put(&producer, 3).await;
    let mut offline = bench.client("offline", 300).await;
    offline.subscribe("t", 1).await;
    drop(offline);
    bench.client("publisher", 0).await.publish("t", b"kept", 1).await;
    let mut wanted = vec![
        ("exactmq_queue_channels", "1"),
        ("exactmq_queue_members", "1"),
        ("exactmq_queue_messages", "3"),
        ("exactmq_queue_bytes", "30"),
        ("exactmq_queue_reclaimable", "0"),
        ("exactmq_leases{state=\"delegated\"}", "2"),
        ("exactmq_leases{state=\"held\"}", "1"),
        ("exactmq_lease_holds{standing=\"held\"}", "1"),
        ("exactmq_leases_lost_total", "0"),
        ("exactmq_inboxes", "1"),
        ("exactmq_inbox_messages", "1"),
    ];
    let deadline = Instant::now() + PATIENCE;
    while !wanted.is_empty() {
        let (status, page) = bench.get("/metrics").await;
        assert_eq!(status, 200);
        wanted.retain(|(name, value)| !page.lines().any(|line| line == format!("{name} {value}")));
        assert!(Instant::now() < deadline, "not told: {wanted:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut watcher = bench.client("watcher", 0).await;
    watcher.subscribe("$SYS/broker/queues/#", 1).await;
    let mut wanted = vec![
        ("channels/count", "1"),
        ("channels/messages", "3"),
        ("channels/bytes", "30"),
        ("members/count", "1"),
        ("inboxes/count", "1"),
        ("inboxes/messages", "1"),
        ("leases/held", "1"),
        ("leases/delegated", "2"),
        ("leases/armed", "0"),
        ("leases/at risk", "0"),
        ("leases/lost", "0"),
    ];
    while !wanted.is_empty() {
        let (topic, payload) = watcher.message().await;
        let name = topic.strip_prefix("$SYS/broker/queues/").unwrap();
        wanted.retain(|(of, value)| !(name == *of && payload == value.as_bytes()));
    }
    bench.end().await;
}

/// DESIGN §9 "Monitor": every stage of a message's way through an inbox is counted, whether it is pushed or read from a backlog.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stages_of_queued_messages_are_counted() {
    let bench = Bench::start().await;
    let stages = || bench.node.shared().metrics.stages().map(|stage| stage.count());
    assert_eq!(stages(), [0; 5]);
    let mut reader = bench.client("reader", 300).await;
    reader.subscribe("t", 1).await;
    let mut publisher = bench.client("publisher", 0).await;
    for _ in 0..3 {
        publisher.publish("t", b"pushed", 1).await;
        assert_eq!(reader.message().await.1, b"pushed");
    }
    let until = async |what: &str, wanted: &dyn Fn([u64; 5]) -> bool| {
        let deadline = Instant::now() + PATIENCE;
        while !wanted(stages()) {
            assert!(Instant::now() < deadline, "{what}: {:?}", stages());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    until("pushed", &|[append, _, wait, client, settle]| {
        append == 3 && wait >= 1 && client >= 1 && settle >= 1
    })
    .await;
    assert_eq!(stages()[1], 0, "nothing was read from a backlog");
    drop(reader);
    bench.until("members", "kind=inbox&status=offline", |rows| rows.len() == 1).await;
    publisher.publish("t", b"kept", 1).await;
    let before = stages();
    let mut reader = bench.client("reader", 300).await;
    assert_eq!(reader.message().await.1, b"kept");
    until("read", &|now| now[1] > before[1] && now[2] > before[2] && now[3] > before[3]).await;
    bench.end().await;
}

/// what is sent and not acknowledged is told by the node that the client is connected to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r18_what_is_sent_and_not_acknowledged_is_told() {
    let bench = Bench::start().await;
    let mut silent = bench.client("silent", 300).await;
    silent.subscribe("t", 1).await;
    let mut publisher = bench.client("publisher", 0).await;
    for _ in 0..3 {
        publisher.publish("t", b"x", 1).await;
    }
    let in_flight = |count: u64| move |rows: &[Value]| rows.len() == 1 && rows[0]["in_flight"] == count;
    bench.until("members", "name=silent", in_flight(3)).await;
    assert_eq!(bench.only("channels", "name=silent").await["messages"], 3);
    for _ in 0..3 {
        silent.message().await;
    }
    bench.until("members", "name=silent", in_flight(0)).await;
    bench.until("channels", "name=silent", |rows| rows[0]["messages"] == 0).await;
    drop(silent);
    bench
        .until("members", "name=silent&status=offline", |rows| {
            rows.len() == 1 && rows[0]["in_flight"].is_null()
        })
        .await;
    bench.end().await;
}

/// P10: of a lease that another process holds, in the store or in another backend, nothing is told but what the store knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_other_processes_are_told_as_far_as_they_are_known() {
    let bench = Bench::start().await;
    let shared = bench.node.shared();
    let elsewhere: Arc<dyn ChannelStore> = Arc::new(MemoryStore::default());
    let foreign: Arc<dyn LeaseBackend> = Arc::new(TableBackend::new(elsewhere, 0));
    let channels = || Arc::new(EmbeddedStore::new(shared.store.clone(), shared.clock.clone()));
    let mut others = Vec::new();
    for (name, leases) in [("own", None), ("foreign", Some(foreign))] {
        let options =
            QueueOptions { leases, keeper: false, label: format!("with {name}"), ..QueueOptions::default() };
        let queues = QueueStore::open(channels(), options);
        let producer =
            new_or_bind_with_unique_key(&queues, &config(), name, ChanType::Mpsc, ChanRole::Producer).await;
        others.push((queues, producer.unwrap()));
    }
    let row = bench.only("members", "name=with%20own").await;
    assert_eq!(
        fields(&row, ["status", "lease", "standing", "keepalive_lag_ms"]),
        [json!("alive"), json!("held"), json!(null), json!(null)]
    );
    assert!(row["lease_left_ms"].as_u64().unwrap() > 0);
    let row = bench.only("members", "name=with%20foreign").await;
    assert_eq!(
        fields(&row, ["status", "lease", "lease_left_ms", "standing"]),
        [json!("alive"), json!(null), json!(null), json!(null)]
    );
    for (queues, _) in &others {
        queues.close().await.unwrap();
    }
    bench.end().await;
}
