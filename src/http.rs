//! `/live`, `/ready` and `/metrics`, for those who look after the service. No content of tasks is shown.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use tokio::net::TcpListener;

use crate::health::{Health, Readiness};
use crate::metrics;

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

    /// Serves for as long as it is let; `page` makes the page of metrics, if there is one yet.
    ///
    /// # Errors
    /// If the listener fails.
    pub async fn serve<M>(
        self,
        health: Arc<Health>,
        page: impl Fn() -> M + Clone + Send + Sync + 'static,
    ) -> io::Result<()>
    where
        M: Future<Output = Option<String>> + Send,
    {
        let metrics_page = || async move {
            match page().await {
                Some(page) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], page).into_response(),
                None => (StatusCode::SERVICE_UNAVAILABLE, "starting; see /ready\n").into_response(),
            }
        };
        let router = Router::new()
            .route("/live", get(|| async { "live\n" }))
            .route("/ready", get(ready))
            .with_state(health)
            .route("/metrics", get(metrics_page));
        axum::serve(self.listener, router).await
    }
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
