//! One data-plane thread: its runtime, its connections, its timer and its mail.

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use session::time::Tick;
use tokio::task::JoinHandle;

use super::deadlines::Deadlines;
use super::task::Connection;
use super::{MailReceiver, Mailbox};
use crate::codec::ReasonCode;
use crate::link::{CloseRequest, Link, Links};
use crate::listener::{CountGuard, Endpoint, Listening};
use crate::service::Service;

/// Between two calls of [`Service::tick`], unless the worker is late.
pub const TICK_PERIOD_MS: u64 = 250;
/// How often deadlines are looked at; a keep alive ends at most this much late.
const TIMER_PERIOD: Duration = Duration::from_millis(TICK_PERIOD_MS);
/// How often a stopping worker looks whether its last connection is gone and what that one began is over.
const DRAIN_PERIOD: Duration = Duration::from_millis(5);

/// What a service is built from, on its own thread.
#[derive(Debug)]
pub struct WorkerContext<S: Service> {
    /// Number of this worker, from 0.
    pub worker: u16,
    /// Its connections.
    pub links: Rc<Links<S::Event>>,
    /// Mailboxes of all workers, by number; this one's included.
    pub mailboxes: Arc<[Mailbox<S::Mail>]>,
}

/// A socket on its way from where it was accepted to its worker.
pub(crate) struct Incoming {
    pub(crate) socket: Socket,
    pub(crate) address: SocketAddr,
    pub(crate) endpoint: Arc<Endpoint>,
    /// Counts the connection where it is bounded and balanced, until its task ends.
    pub(crate) count: CountGuard,
}

/// What a client is at the other end of.
pub(crate) enum Socket {
    Tcp(std::net::TcpStream),
    /// The other end is in this process.
    Local(std::os::unix::net::UnixStream),
}

/// Something to be done on a worker's thread.
pub(crate) type Errand<S> = Box<dyn FnOnce(&Rc<S>) + Send>;

/// What the gateway tells a worker.
pub(crate) enum Control<S: Service> {
    Accept(Incoming),
    Listen(Listening),
    /// Close the listeners; `closed` is dropped when that is done.
    StopListening {
        closed: Sender<()>,
    },
    Run(Errand<S>),
    /// Close all connections, wait for their tasks up to this long, end.
    Stop {
        timeout: Duration,
    },
}

/// What the connections of a worker share.
pub(super) struct Worker<S: Service> {
    pub(super) service: Rc<S>,
    links: Rc<Links<S::Event>>,
    deadlines: RefCell<Deadlines>,
}

impl<S: Service> Worker<S> {
    pub(super) fn new(service: Rc<S>, links: Rc<Links<S::Event>>) -> Self {
        Self { service, links, deadlines: RefCell::default() }
    }

    pub(super) fn insert(&self) -> Option<Rc<Link<S::Event>>> {
        self.links.insert()
    }

    /// Sets when the task must look at its clock; `Tick(u64::MAX)`: never.
    pub(super) fn arm(&self, link: &Link<S::Event>, at: Tick) {
        link.set_deadline(at);
        if at == Tick(u64::MAX) {
            self.deadlines.borrow_mut().remove(link.id().slot);
        } else {
            self.deadlines.borrow_mut().set(link.id().slot, at);
        }
    }

    pub(super) fn remove(&self, link: &Link<S::Event>) {
        self.deadlines.borrow_mut().remove(link.id().slot);
        self.links.remove(link.id());
    }

    /// Wakes the tasks whose deadline passed; moves the entries of those that renewed it.
    fn expire(&self, now: Tick) {
        loop {
            let mut deadlines = self.deadlines.borrow_mut();
            let Some(slot) = deadlines.due(now) else { return };
            let Some(link) = self.links.by_slot(slot) else {
                deadlines.remove(slot);
                continue;
            };
            if link.deadline() > now {
                deadlines.set(slot, link.deadline());
            } else {
                deadlines.remove(slot);
                link.set_due();
            }
        }
    }
}

/// Runs a worker until it is told to stop; connections that were left when its time ran out.
pub(super) fn run<S: Service>(
    runtime: &tokio::runtime::LocalRuntime,
    context: WorkerContext<S>,
    build: impl FnOnce(WorkerContext<S>) -> Rc<S>,
    controls: Arc<[Mailbox<Control<S>>]>,
    control: &MailReceiver<Control<S>>,
    mail: MailReceiver<S::Mail>,
) -> usize {
    let (links, number) = (Rc::clone(&context.links), usize::from(context.worker));
    runtime.block_on(async {
        let worker = Rc::new(Worker::new(build(context), Rc::clone(&links)));
        tokio::task::spawn_local(receive_mail(Rc::clone(&worker.service), mail));
        tokio::task::spawn_local(keep_time(Rc::clone(&worker)));
        let mut listeners = Listeners { number, controls, tasks: Vec::new() };
        let timeout = serve(&worker, &mut listeners, control).await;
        listeners.close().await;
        drain(&*worker.service, &links, timeout).await
    })
}

async fn receive_mail<S: Service>(service: Rc<S>, mail: MailReceiver<S::Mail>) {
    let mut batch = Vec::new();
    loop {
        poll_fn(|cx| mail.poll_take(cx, &mut batch)).await;
        service.mail(&mut batch);
        batch.clear();
        // Connections get their turn between two batches.
        tokio::task::yield_now().await;
    }
}

async fn keep_time<S: Service>(worker: Rc<Worker<S>>) {
    let mut period = tokio::time::interval(TIMER_PERIOD);
    period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        period.tick().await;
        worker.expire(worker.service.now());
        worker.service.tick();
    }
}

/// Takes sockets until it is told to stop.
async fn serve<S: Service>(
    worker: &Rc<Worker<S>>,
    listeners: &mut Listeners<S>,
    control: &MailReceiver<Control<S>>,
) -> Duration {
    let mut batch = Vec::new();
    loop {
        poll_fn(|cx| control.poll_take(cx, &mut batch)).await;
        for message in batch.drain(..) {
            match message {
                Control::Accept(incoming) => accept(worker, incoming),
                Control::Listen(listening) => listeners.open(worker, listening),
                Control::StopListening { closed } => {
                    listeners.close().await;
                    drop(closed);
                }
                Control::Run(f) => f(&worker.service),
                Control::Stop { timeout } => return timeout,
            }
        }
        tokio::task::yield_now().await;
    }
}

/// The accepting loops that run on this worker.
struct Listeners<S: Service> {
    number: usize,
    controls: Arc<[Mailbox<Control<S>>]>,
    tasks: Vec<JoinHandle<()>>,
}

impl<S: Service> Listeners<S> {
    fn open(&mut self, worker: &Rc<Worker<S>>, listening: Listening) {
        let (worker, controls, own) = (Rc::clone(worker), Arc::clone(&self.controls), self.number);
        self.tasks.push(tokio::task::spawn_local(listening.run(move |number, incoming| {
            if number == own {
                accept(&worker, incoming);
            } else {
                // A worker that is gone takes no socket: dropping it closes it.
                drop(controls[number].push(Control::Accept(incoming)));
            }
        })));
    }

    /// Returns when the sockets are closed.
    async fn close(&mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
            // Ended by the abort, or before: its socket is closed either way.
            let _ = task.await;
        }
    }
}

fn accept<S: Service>(worker: &Rc<Worker<S>>, incoming: Incoming) {
    match Connection::new(Rc::clone(worker), incoming) {
        Ok(connection) => drop(tokio::task::spawn_local(connection)),
        // The peer is gone already, or the process is out of descriptors: the socket is closed by now.
        Err(error) => tracing::debug!(%error, "socket not taken"),
    }
}

async fn drain<S: Service>(service: &S, links: &Links<S::Event>, timeout: Duration) -> usize {
    let request = CloseRequest { notice: Some(ReasonCode::ServerShuttingDown), reset: false };
    links.request_close_all(request);
    let mut period = tokio::time::interval(DRAIN_PERIOD);
    let deadline = tokio::time::Instant::now() + timeout;
    while !(links.is_empty() && service.is_settled()) && tokio::time::Instant::now() < deadline {
        period.tick().await;
    }
    links.len()
}
