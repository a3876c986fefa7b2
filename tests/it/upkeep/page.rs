//! The commands of docs/upkeep.md, one after the other.

use std::path::Path;

use tokio::process::Command;

use crate::support::{BINARY, Outside, Service, Stage, Worker, full_report};

fn commands() -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/upkeep.md");
    let text = std::fs::read_to_string(page).unwrap();
    let blocks = text.split("```console\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("```").next().unwrap().lines());
    lines.map(str::to_owned).collect()
}

#[tokio::test]
async fn every_command_of_the_page_does_what_it_says_in_its_order() {
    let stage = Stage::set().await;
    for task_id in ["a", "b"] {
        stage.worker.create(task_id).await;
        let report = full_report(task_id, "completed");
        stage.worker.report(&report).await.task();
    }
    let database = stage.folder.path().join("ledger.db");
    Outside::read(&database).await.until_published().await;
    let (status, log) = stage.service.stop().await;
    assert!(status.success(), "{log}");
    std::fs::rename(&database, stage.folder.path().join("tasklatch.db")).unwrap();
    let path = Path::new(BINARY).parent().unwrap().to_str().unwrap();
    let path = format!("{path}:{}", std::env::var("PATH").unwrap());
    let commands = commands();
    assert!(commands.len() >= 9, "{commands:?}");
    for line in &commands {
        let output = Command::new("sh")
            .args(["-c", line])
            .env("PATH", &path)
            .current_dir(stage.folder.path())
            .output()
            .await
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {text}");
    }
    for name in ["tasklatch.db", "new.db"] {
        let database = stage.folder.path().join(name);
        let mut service = Service::start(&stage.broker, &database, &[]).await;
        let worker = Worker::connect(&stage.broker).await;
        let again = worker.report(&full_report("a", "completed")).await;
        assert_eq!(again.outcome(), Some("replayed"), "{name}");
        service.kill().await;
    }
}
