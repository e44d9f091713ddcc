//! The workers of a process and what feeds them: start, listen, stop.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use thiserror::Error;

use super::worker::{self, Control, WorkerContext};
use super::{Inlet, MailReceiver, Mailbox};
use crate::link::Links;
use crate::listener::{Door, ListenError, ListenerConfig, Listening};
use crate::service::Service;

/// Why the workers could not be started.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("the gateway needs at least one worker")]
    NoWorkers,
    #[error("cannot make the runtime of a worker: {0}")]
    Runtime(#[source] io::Error),
    #[error("cannot start the thread of a worker: {0}")]
    Thread(#[source] io::Error),
}

/// All workers with their connections, and the listeners that feed them.
pub struct Gateway<S: Service> {
    controls: Arc<[Mailbox<Control<S>>]>,
    mailboxes: Arc<[Mailbox<S::Mail>]>,
    connections: Arc<[AtomicUsize]>,
    threads: Vec<JoinHandle<usize>>,
    /// Listeners so far; each new one goes to the next worker.
    listeners: AtomicUsize,
    door: Arc<Door>,
}

impl<S: Service> Gateway<S> {
    /// Starts `workers` threads; `build` makes the service of each on its thread.
    ///
    /// # Errors
    /// No worker asked for, or the operating system refuses a thread or a runtime.
    pub fn start<F>(workers: u16, build: F) -> Result<Self, StartError>
    where
        F: Fn(WorkerContext<S>) -> Rc<S> + Send + Sync + 'static,
    {
        if workers == 0 {
            return Err(StartError::NoWorkers);
        }
        let build = Arc::new(build);
        let (mailboxes, mail): (Vec<_>, Vec<_>) = (0..workers).map(|_| Mailbox::new()).unzip();
        let (controls, control): (Vec<_>, Vec<_>) = (0..workers).map(|_| Mailbox::new()).unzip();
        let mailboxes: Arc<[Mailbox<S::Mail>]> = mailboxes.into();
        let controls: Arc<[Mailbox<Control<S>>]> = controls.into();
        let connections: Arc<[AtomicUsize]> = (0..workers).map(|_| AtomicUsize::new(0)).collect();
        let mut threads = Vec::with_capacity(usize::from(workers));
        for (number, (control, mail)) in (0..).zip(control.into_iter().zip(mail)) {
            let (mailboxes, others) = (Arc::clone(&mailboxes), Arc::clone(&controls));
            let seat = Seat { number, mailboxes, controls: others, control, mail };
            match spawn_worker(seat, Arc::clone(&build)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    stop_workers(&controls, Duration::ZERO);
                    return Err(error);
                }
            }
        }
        Ok(Self {
            controls,
            mailboxes,
            connections,
            threads,
            listeners: AtomicUsize::new(0),
            door: Arc::default(),
        })
    }

    /// Binds a listener and accepts from it; the address that it got.
    ///
    /// # Errors
    /// The address cannot be bound, or the workers have stopped.
    pub fn listen(&self, config: ListenerConfig) -> Result<SocketAddr, ListenError> {
        let (listening, address) =
            Listening::bind(config, Arc::clone(&self.connections), Arc::clone(&self.door))?;
        let worker = self.listeners.fetch_add(1, Ordering::Relaxed) % self.controls.len();
        self.controls[worker].push(Control::Listen(listening)).map_err(|_| ListenError::Stopped)?;
        Ok(address)
    }

    /// What all its listeners have in common.
    #[must_use]
    pub fn door(&self) -> &Arc<Door> {
        &self.door
    }

    /// The way in for clients that are part of this process.
    #[must_use]
    pub fn inlet(&self) -> Inlet<S> {
        Inlet::new(Arc::clone(&self.controls), Arc::clone(&self.connections))
    }

    /// Mailboxes of all workers, by number.
    #[must_use]
    pub fn mailboxes(&self) -> &Arc<[Mailbox<S::Mail>]> {
        &self.mailboxes
    }

    /// Runs `f` on a worker's thread, soon; false when the worker is gone.
    pub fn run(&self, worker: usize, f: impl FnOnce(&Rc<S>) + Send + 'static) -> bool {
        self.controls.get(worker).is_some_and(|control| control.push(Control::Run(Box::new(f))).is_ok())
    }

    /// Open sockets of each worker.
    #[must_use]
    pub fn connections(&self) -> Vec<usize> {
        self.connections.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// Closes all listening sockets; connections stay. Returns when they are closed.
    pub fn stop_listening(&self) {
        let (closed, all_closed) = mpsc::channel();
        for control in self.controls.iter() {
            // A worker that is gone has closed its listeners.
            drop(control.push(Control::StopListening { closed: closed.clone() }));
        }
        drop(closed);
        while all_closed.recv().is_ok() {}
    }

    /// Stops accepting, closes all connections (v5: DISCONNECT 0x8B), waits up to `timeout` for their tasks, ends the threads.
    /// The number of connections whose task did not end in time; their sockets are closed as well.
    pub fn stop(mut self, timeout: Duration) -> usize {
        self.stop_listening();
        stop_workers(&self.controls, timeout);
        // A worker that panicked has dropped its connections.
        std::mem::take(&mut self.threads).into_iter().map(|thread| thread.join().unwrap_or(0)).sum()
    }
}

impl<S: Service> Drop for Gateway<S> {
    /// Without [`Gateway::stop`] sockets are closed as well, but nobody waits for it.
    fn drop(&mut self) {
        stop_workers(&self.controls, Duration::ZERO);
    }
}

fn stop_workers<S: Service>(controls: &[Mailbox<Control<S>>], timeout: Duration) {
    for control in controls {
        // One that has stopped already takes no message.
        drop(control.push(Control::Stop { timeout }));
    }
}

/// What one worker thread starts with.
struct Seat<S: Service> {
    number: u16,
    mailboxes: Arc<[Mailbox<S::Mail>]>,
    controls: Arc<[Mailbox<Control<S>>]>,
    control: MailReceiver<Control<S>>,
    mail: MailReceiver<S::Mail>,
}

fn spawn_worker<S, F>(seat: Seat<S>, build: Arc<F>) -> Result<JoinHandle<usize>, StartError>
where
    S: Service,
    F: Fn(WorkerContext<S>) -> Rc<S> + Send + Sync + 'static,
{
    let (made, is_made) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name(format!("worker-{}", seat.number))
        .spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build_local(tokio::runtime::LocalOptions::default());
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => {
                    drop(made.send(Err(error)));
                    return 0;
                }
            };
            drop(made.send(Ok(())));
            let context = WorkerContext {
                worker: seat.number,
                links: Rc::new(Links::new(seat.number)),
                mailboxes: seat.mailboxes,
            };
            worker::run(&runtime, context, |context| build(context), seat.controls, &seat.control, seat.mail)
        })
        .map_err(StartError::Thread)?;
    match is_made.recv() {
        Ok(Ok(())) => Ok(thread),
        Ok(Err(error)) => Err(StartError::Runtime(error)),
        Err(_) => Err(StartError::Runtime(io::Error::other("the thread ended"))),
    }
}
