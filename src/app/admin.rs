//! The admin API, made from the settings and the parts of the service.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use super::{StartError, parts::Parts};
use crate::{
    clock::{Clock, SystemClock},
    panics::{self, Boundary},
    server::admin::{Api, Hosts, Options, StoreInfo, Tokens},
    settings::{ServerAddress, Settings},
};

/// The admin API, if it is on.
///
/// # Errors
/// When its tokens cannot be read.
pub(super) fn api(settings: &Settings, parts: &Parts) -> Result<Option<Arc<Api>>, StartError> {
    let Some(admin) = &settings.admin else { return Ok(None) };
    let tokens = admin.token_file.as_deref().map(Tokens::load).transpose();
    let tokens = tokens.map_err(|error| StartError(vec![error]))?;
    let options = Options {
        shown: parts.admin(),
        hosts: match &admin.listen {
            ServerAddress::Tcp(address) => Hosts::Local(address.host.clone()),
            ServerAddress::Unix(_) => Hosts::Any,
        },
        tokens,
        read_only: admin.read_only,
        store: StoreInfo { kind: settings.backend.name(), address: settings.backend.address() },
        started: SystemClock.now(),
    };
    Ok(Some(Arc::new(Api::new(options))))
}

/// Notes once a second what was counted, until `stop` turns true.
pub(super) async fn sample(api: Arc<Api>, stop: watch::Receiver<bool>) {
    let work = async || {
        let (api, mut stop) = (api.clone(), stop.clone());
        let mut second = interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = second.tick() => api.tick(SystemClock.now()).await,
                _ = stop.wait_for(|stop| *stop) => return api.close(),
            }
        }
    };
    panics::restart_task(Boundary::Maintenance, work).await;
}
