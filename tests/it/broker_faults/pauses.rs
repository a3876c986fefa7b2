//! A nats-server that stands still for longer than anybody waits.

use serde_json::json;

use crate::support::{Observer, Stage, commit_cut_off, eventually, http_get, signal};

#[tokio::test]
async fn events_under_way_while_the_server_stands_still_come_once_when_it_goes_on() {
    let stage = Stage::set_with(&["--http", "127.0.0.1:0"]).await;
    for task_id in ["t-1", "t-2"] {
        stage.worker.create(task_id).await;
    }
    let mut observer = Observer::watch(&stage.broker).await;
    observer.all_so_far().await;
    let report = |task_id| json!({"task_id": task_id, "status": "completed", "summary": "done"});
    let reports = [report("t-1"), report("t-2")];
    commit_cut_off(&stage.broker, &stage.worker, &stage.database(), &reports).await;
    eventually("the service has waited in vain", async || {
        let (status, page) = http_get(&stage.service.ready_line, "/ready").await;
        (status == 503 && page.contains("round trip")).then_some(())
    })
    .await;
    signal(stage.broker.pid(), "CONT").await;
    let expected = ["t-1.2.result", "t-1.2.task", "t-2.2.result", "t-2.2.task"];
    for id in expected {
        assert_eq!(observer.next().await.id(), id);
    }
    assert_eq!(
        observer.ids_so_far().await,
        [""; 0],
        "none comes a second time"
    );
    eventually("it is ready again", async || {
        let (status, _) = http_get(&stage.service.ready_line, "/ready").await;
        (status == 200).then_some(())
    })
    .await;
}
