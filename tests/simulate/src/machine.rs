//! What a process takes from its machine, in the simulation.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex},
};

use net::edges::{Dial, Edges, Spawn, Spawner, Transport};

use crate::{
    clocks::{ProcessClock, ProcessTimer},
    network::{Network, Socket},
    random::{Random, Shared},
    world::Process,
};

/// The port of the first server of Redis; the others' follow.
pub const PORT: u16 = 6379;

/// The edges of a process.
pub fn edges(network: &Arc<Network>, process: Process, clock: Arc<ProcessClock>, random: Random) -> Edges {
    let machine = Arc::new(Machine { network: network.clone(), process });
    Edges {
        clock: clock.clone(),
        timer: Arc::new(ProcessTimer(clock)),
        random: Arc::new(Shared(Mutex::new(random))),
        dial: machine.clone(),
        spawn: machine,
    }
}

struct Machine {
    network: Arc<Network>,
    process: Process,
}

type Pending<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>;

impl Dial for Machine {
    fn resolve<'a>(&'a self, _: &'a str, port: u16) -> Pending<'a, Vec<SocketAddr>> {
        Box::pin(std::future::ready(Ok(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))])))
    }

    fn connect(&self, to: SocketAddr) -> Pending<'_, Transport> {
        Box::pin(async move {
            let socket = Socket::connect(self.network.clone(), self.process, to.port()).await?;
            Ok(Box::new(socket) as Transport)
        })
    }

    fn connect_unix<'a>(&'a self, _: &'a Path) -> Pending<'a, Transport> {
        Box::pin(std::future::ready(Err(io::ErrorKind::NotFound.into())))
    }
}

impl Spawn for Machine {
    fn here(&self) -> Option<Spawner> {
        let (world, process) = (self.network.world.clone(), self.process);
        Some(Arc::new(move |task| world.start(process, task)))
    }
}
