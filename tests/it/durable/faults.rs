//! What fails beside the reports: the store, the stream, its consumer, the server, a permission.

use serde_json::json;

use super::{answers, next, publish, set, set_on, until_drained, until_ready, until_unready_for};
use crate::support::{Broker, Outside, full_report, insist};

#[tokio::test]
async fn a_report_that_meets_a_locked_store_is_delivered_again_and_accepted_once_the_lock_is_gone()
{
    let (stage, context) = set().await;
    until_ready(&stage).await;
    stage.worker.create("t").await;
    let (inbox, mut came) = answers(&stage.worker).await;
    let mut outside = Outside::write(&stage.database()).await;
    outside.hold().await;
    let report = full_report("t", "completed");
    publish(&context, "t", &report, &[("Tasklatch-Reply-To", &inbox)]).await;
    until_unready_for(&stage, "the store cannot be written").await;
    outside.release().await;
    // Nothing is said of the tries that failed.
    assert_eq!(next(&mut came).await.outcome(), Some("accepted"));
    until_drained(&context).await;
    assert_eq!(super::held(&context, "TASKLATCH_DEAD").await, 0);
    until_ready(&stage).await;
}

#[tokio::test]
async fn a_consumer_and_a_stream_that_are_deleted_are_made_anew() {
    let (stage, context) = set().await;
    until_ready(&stage).await;
    let (inbox, mut came) = answers(&stage.worker).await;
    for number in 0..3 {
        let task_id = format!("t-{number}");
        stage.worker.create(&task_id).await;
        match number {
            0 => {}
            1 => {
                let stream = context.get_stream("TASKLATCH_REPORTS").await.unwrap();
                stream.delete_consumer("tasklatch").await.unwrap();
            }
            _ => {
                context.delete_stream("TASKLATCH_REPORTS").await.unwrap();
                crate::support::eventually("the stream is there again", async || {
                    context.get_stream("TASKLATCH_REPORTS").await.ok()
                })
                .await;
            }
        }
        let report = full_report(&task_id, "completed");
        publish(
            &context,
            &task_id,
            &report,
            &[("Tasklatch-Reply-To", &inbox)],
        )
        .await;
        assert_eq!(next(&mut came).await.outcome(), Some("accepted"));
        until_drained(&context).await;
        until_ready(&stage).await;
    }
}

#[tokio::test]
async fn a_server_that_restarts_is_pulled_from_again() {
    let (mut stage, context) = set().await;
    until_ready(&stage).await;
    stage.worker.create("t").await;
    stage.broker.kill().await;
    until_unready_for(&stage, "not connected").await;
    stage.broker.restart().await;
    until_ready(&stage).await;
    let create = json!({"task_id": "u", "title": "a task"});
    insist(&stage.worker, "tasklatch.task.create", &create).await;
    let (inbox, mut came) = answers(&stage.worker).await;
    for task_id in ["t", "u"] {
        let report = full_report(task_id, "completed");
        publish(
            &context,
            task_id,
            &report,
            &[("Tasklatch-Reply-To", &inbox)],
        )
        .await;
        assert_eq!(next(&mut came).await.outcome(), Some("accepted"));
    }
    until_drained(&context).await;
}

#[tokio::test]
async fn a_service_starts_without_jetstream_says_so_and_takes_reports_once_it_is_there() {
    let (mut stage, context) = set_on(Broker::start_configured("").await).await;
    until_unready_for(
        &stage,
        "durable reports are not taken: the stream TASKLATCH_REPORTS",
    )
    .await;
    stage.worker.create("t").await;
    stage.broker.kill().await;
    stage.broker.restart_configured("jetstream {}").await;
    until_ready(&stage).await;
    publish(&context, "t", &full_report("t", "completed"), &[]).await;
    until_drained(&context).await;
    assert_eq!(super::results(&stage).await, 1);
}

#[tokio::test]
async fn a_stream_that_is_not_as_it_must_be_is_named_and_used_once_it_is() {
    let broker = Broker::start_with_jetstream().await;
    let context = async_nats::jetstream::new(broker.client().await);
    let mut config = async_nats::jetstream::stream::Config {
        name: "TASKLATCH_REPORTS".to_owned(),
        subjects: vec!["tasklatch.queue.report.>".to_owned()],
        ..Default::default()
    };
    context.create_stream(config.clone()).await.unwrap();
    let (stage, context) = set_on(broker).await;
    until_unready_for(&stage, "which is not for this use").await;
    context.delete_stream("TASKLATCH_REPORTS").await.unwrap();
    config.retention = async_nats::jetstream::stream::RetentionPolicy::WorkQueue;
    let _ = context.create_stream(config).await;
    until_ready(&stage).await;
}

#[tokio::test]
async fn a_permission_that_is_missing_to_pull_or_to_acknowledge_is_noticed() {
    let config = |denied: &str| {
        format!(
            "jetstream {{}}\nauthorization {{ users = [ {{ user: u, password: p, permissions: {{ publish: {{ deny: [\"{denied}\"] }} }} }}, {{ user: w, password: w }} ]\n}}\nno_auth_user: w"
        )
    };
    let broker = Broker::start_configured(&config("$JS.API.CONSUMER.MSG.NEXT.>")).await;
    let folder = tempfile::tempdir().unwrap();
    let options = [
        &super::SERVE[..],
        &["--nats-user", "u", "--nats-password", "p"],
    ]
    .concat();
    let database = folder.path().join("ledger.db");
    let service = crate::support::Service::start_serving(&broker, &database, &options).await;
    let worker = crate::support::Worker::connect(&broker).await;
    let context = async_nats::jetstream::new(worker.client.clone());
    let mut stage = crate::support::Stage {
        broker,
        service,
        worker,
        folder,
    };
    until_unready_for(&stage, "has been silent").await;
    stage.worker.create("t").await;
    stage.broker.kill().await;
    stage.broker.restart_configured(&config("$JS.ACK.>")).await;
    until_ready(&stage).await;
    publish(&context, "t", &full_report("t", "completed"), &[]).await;
    until_unready_for(&stage, "does not hear of it").await;
    assert_eq!(
        super::results(&stage).await,
        1,
        "it is applied all the same"
    );
    stage.broker.kill().await;
    stage.broker.restart_configured(&config("nothing")).await;
    let stream = context.get_stream("TASKLATCH_REPORTS").await.unwrap();
    stream.delete_consumer("tasklatch").await.unwrap();
    until_drained(&context).await;
    until_ready(&stage).await;
}
