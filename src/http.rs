//! `/live`, `/ready` and `/metrics`, for those who look after the service. No content of tasks is shown.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, StatusCode};
use axum::routing::get;
use axum::{Json, Router};
use tokio::net::TcpListener;

use crate::health::{Health, Readiness};
use crate::ledger::Ledger;
use crate::metrics;
use crate::task::Timestamp;

/// An HTTP address that is bound and not served yet.
#[derive(Debug)]
pub struct Http {
    listener: TcpListener,
}

impl Http {
    /// Binds the address.
    ///
    /// # Errors
    /// If it cannot be had, most often since it is in use.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        Ok(Self {
            listener: TcpListener::bind(address).await?,
        })
    }

    /// The address, with the port that a port of 0 became.
    ///
    /// # Errors
    /// If the operating system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves for as long as it is let.
    ///
    /// # Errors
    /// If the listener fails.
    pub async fn serve(self, health: Arc<Health>, ledger: Ledger) -> io::Result<()> {
        let router = Router::new()
            .route("/live", get(|| async { "live\n" }))
            .route("/ready", get(ready))
            .with_state(health.clone())
            .route("/metrics", get(metrics_page))
            .with_state((health, ledger));
        axum::serve(self.listener, router).await
    }
}

type Page = ([(HeaderName, &'static str); 1], String);

async fn metrics_page(State((health, ledger)): State<(Arc<Health>, Ledger)>) -> Page {
    // A store that cannot be read shows in /ready.
    let lag = ledger.lag().await.ok();
    let page = health.metrics().page(lag, Timestamp::now());
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], page)
}

async fn ready(State(health): State<Arc<Health>>) -> (StatusCode, Json<Readiness>) {
    let readiness = health.readiness();
    let status = if readiness.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(readiness))
}
