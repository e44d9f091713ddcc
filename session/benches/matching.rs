//! The subscription index: what a match, an update and a filter cost (PERF: ≤ 150 ns, few microseconds, ≤ 400 bytes).

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use session::topic::{Matches, Subscription, Tree, scan};

mod measure;

const FILTERS: u32 = 100_000;
const CLIENTS: u32 = 1_000;

/// As large as what a broker keeps of a subscriber.
#[derive(Clone, Copy)]
struct Sub {
    id: u64,
    _link: u64,
    _options: u32,
}

impl Subscription for Sub {
    type Id = u64;
    fn id(&self) -> u64 {
        self.id
    }
}

fn sub(id: u32) -> Sub {
    Sub { id: u64::from(id), _link: 0, _options: 0 }
}

/// 100 filters for each of 1,000 clients: exact, `+` and `#` ones.
fn filter(number: u32) -> String {
    let (site, device) = (number % CLIENTS, number / CLIENTS);
    match device % 4 {
        0 => format!("site{site}/device{device}/temperature"),
        1 => format!("site{site}/device{device}/+"),
        2 => format!("site{site}/device{device}/#"),
        _ => format!("site{site}/+/alarm{device}"),
    }
}

fn tree() -> Tree<Sub> {
    let mut tree = Tree::new();
    for number in 0..FILTERS {
        tree.insert(&filter(number), sub(number % CLIENTS));
    }
    tree
}

fn topics() -> Vec<String> {
    (0..4_096_u32)
        .map(|number| {
            let number = number.wrapping_mul(2_654_435_761) % FILTERS;
            format!("site{}/device{}/temperature", number % CLIENTS, number / CLIENTS)
        })
        .collect()
}

fn found(tree: &Tree<Sub>, topic: &str) -> usize {
    let mut out = Matches::new();
    tree.matches(black_box(topic), &mut out);
    black_box(out.slices.len())
}

fn matching(c: &mut Criterion) {
    let tree = measure::bytes_each("100,000 filters with wildcards", FILTERS as usize, tree);
    let topics = topics();
    let mut next = 0;
    measure::best("match, 100k filters, 4,096 topics in turn", || {
        next = (next + 1) % topics.len();
        found(&tree, &topics[next])
    });
    measure::best("match, 100k filters, 64 topics in turn", || {
        next = (next + 1) % 64;
        found(&tree, &topics[next])
    });
    c.bench_function("match/100k filters, 3 levels", |b| {
        b.iter(|| {
            next = (next + 1) % topics.len();
            found(&tree, &topics[next])
        });
    });
    c.bench_function("match/100k filters, one hot topic", |b| {
        b.iter(|| found(&tree, &topics[0]));
    });
    let wide = measure::bytes_each("100,000 children of one level", FILTERS as usize, || {
        let mut wide = Tree::new();
        for number in 0..FILTERS {
            wide.insert(&format!("device/{number}/state"), sub(number));
        }
        wide
    });
    let names: Vec<String> = (0..4_096_u32)
        .map(|number| format!("device/{}/state", number.wrapping_mul(2_654_435_761) % FILTERS))
        .collect();
    c.bench_function("match/100k children of one level", |b| {
        b.iter(|| {
            next = (next + 1) % names.len();
            found(&wide, &names[next])
        });
    });
}

/// Each update while a reader holds the version before it, as a broker publishes them.
fn updates(c: &mut Criterion) {
    c.bench_function("build/100k filters", |b| b.iter(tree));
    let mut wide = Tree::new();
    let mut popular = Tree::new();
    for number in 0..FILTERS {
        wide.insert(&format!("device/{number}/state"), sub(number));
    }
    for number in 0..15_000 {
        popular.insert("news/+", sub(2 * number));
    }
    let mut number = 0_u32;
    let mut shared = |name: &str, tree: &mut Tree<Sub>, filter: fn(u32) -> String| {
        c.bench_function(name, |b| {
            b.iter(|| {
                number = number.wrapping_add(7_919) % 15_000;
                let filter = filter(number);
                let before = tree.clone();
                tree.insert(&filter, sub(2 * number + 1));
                let between = tree.clone();
                tree.remove(&filter, u64::from(2 * number + 1));
                (before, between)
            });
        });
    };
    shared("insert + remove, shared/100k children", &mut wide, |number| format!("device/x{number}/state"));
    shared("insert + remove, shared/15k subscribers", &mut popular, |_| "news/+".to_owned());
}

fn retained(c: &mut Criterion) {
    let names: BTreeMap<Arc<str>, ()> = (0..FILTERS)
        .map(|number| (Arc::from(format!("site{}/device{number}/state", number % CLIENTS)), ()))
        .collect();
    for filter in ["#", "site7/#", "+/device77/state", "site7/device7/state"] {
        c.bench_function(&format!("retained scan/{filter}"), |b| {
            b.iter(|| {
                let mut found = 0;
                scan(&names, black_box(filter), |_, ()| {
                    found += 1;
                    true
                });
                found
            });
        });
    }
}

criterion_group!(benches, matching, updates, retained);
criterion_main!(benches);
