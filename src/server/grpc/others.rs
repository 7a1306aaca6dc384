//! The calls beside the hot one, which go through tonic: health checks, reflection, and the answer to
//! calls that do not exist.

use std::sync::Arc;

use tonic::service::Routes;
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{
    panics::{self, Boundary},
    proto,
    server::health::{self, Health},
};

/// The routes of these calls, made once and shared by all workers.
///
/// Spawns a task that hands every change of the service's health on; call it on a
/// [`LocalSet`](tokio::task::LocalSet).
pub(super) fn routes(health: &Arc<Health>) -> Routes {
    let (reporter, health_service) = tonic_health::server::health_reporter();
    let health = health.clone();
    tokio::task::spawn_local(async move {
        panics::restart_task(Boundary::Maintenance, async || report(&reporter, &health).await).await;
    });
    let mut routes = Routes::new(health_service);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // The descriptors are compiled into this binary, so neither fails; a test asks for both.
    if let Ok(service) = reflection().build_v1() {
        routes = routes.add_service(service);
    }
    if let Ok(service) = reflection().build_v1alpha() {
        routes = routes.add_service(service);
    }
    routes.prepare()
}

async fn report(reporter: &HealthReporter, health: &Health) {
    let mut changes = health.changes();
    loop {
        let status =
            if *changes.borrow_and_update() { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in ["", health::GRPC_SERVICE] {
            reporter.set_service_status(service, status).await;
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}
