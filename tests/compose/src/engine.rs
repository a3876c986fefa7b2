//! The containers of the composition that this one belongs to.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::models::{ContainerCreateBody, ContainerInspectResponse, HealthStatusEnum};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, KillContainerOptionsBuilder, ListContainersOptionsBuilder,
    LogsOptionsBuilder, RemoveContainerOptionsBuilder, StopContainerOptionsBuilder,
    WaitContainerOptionsBuilder,
};
use futures_util::TryStreamExt;
use serde_json::{Value, json};
use tokio::time::{Instant, interval};

use crate::Result;

const PROJECT: &str = "com.docker.compose.project";
const SERVICE: &str = "com.docker.compose.service";

/// How long a container may take to be healthy.
const HEALTHY_WITHIN: Duration = Duration::from_secs(90);

/// How long a container may take to end after SIGTERM, as in compose.yaml.
const GRACE_SECONDS: i32 = 30;

/// How often the engine is asked again.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// What a container that ran to its end left.
#[derive(Debug)]
pub struct Run {
    pub exit_code: i64,
    pub output: String,
}

/// The engine, and the project whose containers are meant.
pub struct Engine {
    docker: Docker,
    project: String,
}

impl Engine {
    /// Reaches the engine by its socket and finds out which project this container belongs to.
    pub async fn reach() -> Result<Self> {
        let docker = Docker::connect_with_socket_defaults()?
            .negotiate_version()
            .await?;
        let own_id = std::fs::read_to_string("/etc/hostname")?;
        let own = docker.inspect_container(own_id.trim(), None).await?;
        let labels = own.config.and_then(|config| config.labels);
        let project = labels
            .and_then(|mut labels| labels.remove(PROJECT))
            .ok_or("this container was not started by Compose")?;
        Ok(Self { docker, project })
    }

    /// The container of a service, running or not.
    async fn id(&self, service: &str) -> Result<String> {
        let labels = vec![
            format!("{PROJECT}={}", self.project),
            format!("{SERVICE}={service}"),
            "com.docker.compose.oneoff=False".to_owned(),
        ];
        let filters = HashMap::from([("label".to_owned(), labels)]);
        let options = ListContainersOptionsBuilder::default()
            .all(true)
            .filters(&filters)
            .build();
        let found = self.docker.list_containers(Some(options)).await?;
        match found.as_slice() {
            [one] => Ok(one.id.clone().ok_or("a container without an ID")?),
            other => Err(format!("{} containers of service {service}", other.len()).into()),
        }
    }

    /// All that the engine says of a service's container.
    pub async fn inspect(&self, service: &str) -> Result<ContainerInspectResponse> {
        let id = self.id(service).await?;
        Ok(self.docker.inspect_container(&id, None).await?)
    }

    /// `docker kill`: SIGKILL.
    pub async fn kill(&self, service: &str) -> Result {
        let id = self.id(service).await?;
        let options = KillContainerOptionsBuilder::default()
            .signal("SIGKILL")
            .build();
        Ok(self.docker.kill_container(&id, Some(options)).await?)
    }

    /// `docker stop`: SIGTERM, and time to end. Gives the exit code.
    pub async fn stop(&self, service: &str) -> Result<i64> {
        let id = self.id(service).await?;
        let options = StopContainerOptionsBuilder::default()
            .t(GRACE_SECONDS)
            .build();
        self.docker.stop_container(&id, Some(options)).await?;
        let state = self.docker.inspect_container(&id, None).await?.state;
        Ok(state
            .and_then(|state| state.exit_code)
            .ok_or("no exit code")?)
    }

    /// `docker start`, and waits until it is healthy.
    pub async fn start(&self, service: &str) -> Result {
        let id = self.id(service).await?;
        self.docker.start_container(&id, None).await?;
        self.until_healthy(&id).await
    }

    async fn until_healthy(&self, id: &str) -> Result {
        let end = Instant::now() + HEALTHY_WITHIN;
        let mut again = interval(ASK_EVERY);
        loop {
            again.tick().await;
            let state = self.docker.inspect_container(id, None).await?.state;
            let health = state.and_then(|state| state.health);
            let status = health.as_ref().and_then(|health| health.status);
            if status == Some(HealthStatusEnum::HEALTHY) {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(format!("container {id} is not healthy: {health:?}").into());
            }
        }
    }

    /// Stops a service's container and puts a new one in its place, on the same volumes and with the same name. Gives the
    /// exit code of the old one.
    pub async fn replace(&self, service: &str) -> Result<i64> {
        let old = self.inspect(service).await?;
        let exit_code = self.stop(service).await?;
        let id = old.id.clone().ok_or("a container without an ID")?;
        let name = old.name.clone().ok_or("a container without a name")?;
        self.remove(&id).await?;
        let body = body_like(&old, &json!({}))?;
        let options = CreateContainerOptionsBuilder::default()
            .name(name.trim_start_matches('/'))
            .build();
        let new = self.docker.create_container(Some(options), body).await?;
        self.docker.start_container(&new.id, None).await?;
        self.until_healthy(&new.id).await?;
        Ok(exit_code)
    }

    /// Runs a container like that of a service, with the same volumes, to its end; `changes` are laid over its configuration.
    pub async fn run(&self, service: &str, changes: &Value) -> Result<Run> {
        let id = self.create_beside(service, changes).await?;
        self.docker.start_container(&id, None).await?;
        let options = WaitContainerOptionsBuilder::default()
            .condition("not-running")
            .build();
        let waited: std::result::Result<Vec<_>, _> = self
            .docker
            .wait_container(&id, Some(options))
            .try_collect()
            .await;
        let exit_code = match waited {
            Ok(_) => 0,
            Err(bollard::errors::Error::DockerContainerWaitError { code, .. }) => code,
            Err(error) => return Err(error.into()),
        };
        let output = self.logs(&id).await?;
        self.remove(&id).await?;
        Ok(Run { exit_code, output })
    }

    /// Starts a container like that of a service beside it, and waits until it is healthy. Gives its ID, for
    /// [`end`](Self::end).
    pub async fn begin(&self, service: &str, changes: &Value) -> Result<String> {
        let id = self.create_beside(service, changes).await?;
        self.docker.start_container(&id, None).await?;
        self.until_healthy(&id).await?;
        Ok(id)
    }

    /// Stops and removes what [`begin`](Self::begin) started.
    pub async fn end(&self, id: &str) -> Result {
        let options = StopContainerOptionsBuilder::default()
            .t(GRACE_SECONDS)
            .build();
        self.docker.stop_container(id, Some(options)).await?;
        self.remove(id).await
    }

    async fn create_beside(&self, service: &str, changes: &Value) -> Result<String> {
        let like = self.inspect(service).await?;
        let mut body = body_like(&like, changes)?;
        // It is not a container of the service: Compose leaves it alone, and it takes no port.
        let mut labels = body.labels.take().unwrap_or_default();
        labels.insert("com.docker.compose.oneoff".to_owned(), "True".to_owned());
        body.labels = Some(labels);
        if let Some(host) = &mut body.host_config {
            host.port_bindings = None;
            host.restart_policy = None;
        }
        Ok(self.docker.create_container(None, body).await?.id)
    }

    async fn remove(&self, id: &str) -> Result {
        let options = RemoveContainerOptionsBuilder::default().force(true).build();
        Ok(self.docker.remove_container(id, Some(options)).await?)
    }

    /// What the container of a service has printed.
    pub async fn logs_of(&self, service: &str) -> Result<String> {
        let id = self.id(service).await?;
        self.logs(&id).await
    }

    async fn logs(&self, id: &str) -> Result<String> {
        let options = LogsOptionsBuilder::default()
            .stdout(true)
            .stderr(true)
            .build();
        let lines: Vec<_> = self.docker.logs(id, Some(options)).try_collect().await?;
        Ok(lines.iter().map(ToString::to_string).collect())
    }
}

/// What makes a container like an existing one, with changes of its configuration.
fn body_like(old: &ContainerInspectResponse, changes: &Value) -> Result<ContainerCreateBody> {
    let mut body = serde_json::to_value(&old.config)?;
    let fields = body
        .as_object_mut()
        .ok_or("a container without a configuration")?;
    fields.remove("Hostname");
    for (key, value) in changes.as_object().into_iter().flatten() {
        fields.insert(key.clone(), value.clone());
    }
    fields.insert(
        "HostConfig".to_owned(),
        serde_json::to_value(&old.host_config)?,
    );
    let networks = old
        .network_settings
        .as_ref()
        .and_then(|settings| settings.networks.clone())
        .unwrap_or_default();
    let endpoints: HashMap<String, Value> = networks
        .into_iter()
        .map(|(name, endpoint)| (name, json!({"Aliases": endpoint.aliases})))
        .collect();
    fields.insert(
        "NetworkingConfig".to_owned(),
        json!({"EndpointsConfig": endpoints}),
    );
    Ok(serde_json::from_value(body)?)
}
