//! Many requests at once on one connection, and all the answers that each of them gets.

use async_nats::Subscriber;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::timeout;

use super::{DEADLINE, Reply, Worker};

/// Requests whose answers are collected, however many there are for each.
pub struct Burst {
    worker: Worker,
    inbox: String,
    answers: Subscriber,
    /// What came, by request.
    pub replies: Vec<Vec<Reply>>,
}

impl Burst {
    /// Gets ready to send on this worker's connection.
    pub async fn open(worker: &Worker) -> Self {
        let inbox = worker.client.new_inbox();
        let answers = worker.client.subscribe(format!("{inbox}.*")).await.unwrap();
        Self {
            worker: worker.clone(),
            inbox,
            answers,
            replies: Vec::new(),
        }
    }

    /// Sends a request and does not wait for its answer. Gives its number.
    pub async fn send(&mut self, subject: &str, payload: impl Into<Bytes>) -> usize {
        let number = self.replies.len();
        self.replies.push(Vec::new());
        let reply = format!("{}.{number}", self.inbox);
        self.worker
            .client
            .publish_with_reply(subject.to_owned(), reply, payload.into())
            .await
            .unwrap();
        number
    }

    /// The next answer, and the number of its request.
    pub async fn next(&mut self) -> (usize, Reply) {
        let message = timeout(DEADLINE, self.answers.next())
            .await
            .expect("an answer in time")
            .unwrap();
        let number: usize = message.subject.rsplit('.').next().unwrap().parse().unwrap();
        let reply = Reply {
            headers: message.headers.unwrap_or_default(),
            body: message.payload,
        };
        assert_eq!(
            reply.header("Tasklatch-Protocol"),
            Some("1"),
            "every answer says so"
        );
        self.replies[number].push(reply.clone());
        (number, reply)
    }

    /// Waits until every request has an answer, then for one more round, and gives the one answer that each must have.
    pub async fn finish(mut self) -> Vec<Reply> {
        while self.replies.iter().any(Vec::is_empty) {
            self.next().await;
        }
        // The service answers on one connection: what it would have sent before this answer has come by then.
        let last = self.send("tasklatch.task.list", "{}").await;
        while self.replies[last].is_empty() {
            self.next().await;
        }
        self.replies.pop();
        let one = |(number, mut replies): (usize, Vec<Reply>)| {
            assert_eq!(
                replies.len(),
                1,
                "request {number} has one answer: {replies:?}"
            );
            replies.remove(0)
        };
        self.replies.into_iter().enumerate().map(one).collect()
    }
}
