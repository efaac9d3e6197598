//! Tokens that volumes show since before rubelet started.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rubelet_ports::api::ApiErrorKind;
use rubelet_ports::{ObjectFailure, PodObjects as _, Token, TokenQuestion};
use serde_json::{Value, json};

use crate::api::Mood;
use crate::bed::{Bed, EPOCH_SECONDS, JITTER};
use crate::volume_files::Content;

/// What the API server's admission gives to every pod.
fn spec() -> Value {
    json!({"volumes": [{"name": "v", "projected": {"sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt"}},
    ]}}]})
}

fn question(uid: &str) -> TokenQuestion {
    TokenQuestion {
        namespace: "n".to_owned(),
        service_account: "account".to_owned(),
        audiences: Vec::new(),
        expiration_seconds: 3607,
        pod_name: format!("pod-{uid}"),
        pod_uid: uid.to_owned(),
    }
}

/// The extended token that an API server has issued to a pod, so many seconds before the start.
fn token_of(uid: &str, age_seconds: i64) -> String {
    let issued = EPOCH_SECONDS - age_seconds;
    let claims = json!({
        "aud": ["https://kubernetes.default.svc"], "iat": issued, "nbf": issued, "exp": issued + 365 * 24 * 3600,
        "sub": "system:serviceaccount:n:account",
        "kubernetes.io": {
            "namespace": "n", "pod": {"name": format!("pod-{uid}"), "uid": uid}, "warnafter": issued + 3607,
            "serviceaccount": {"name": "account", "uid": "u"},
        },
    });
    format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()))
}

impl Bed {
    fn put_token(&self, uid: &str, token: &str) {
        self.files
            .put_token(uid, Content::Text(token.as_bytes().to_vec()));
    }

    async fn volume_token(&self, uid: &str) -> Result<Token, ObjectFailure> {
        self.objects.token(&question(uid)).await
    }

    fn requests(&self) -> usize {
        self.api.issuing.lock().unwrap().requests.len()
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_a_full_node_requests_no_token() {
    let bed = Bed::new();
    // As the default of kubeAPIQPS has it.
    bed.api.issuing.lock().unwrap().pace = Duration::from_millis(20);
    let uids: Vec<String> = (0..500).map(|number| format!("p{number}")).collect();
    for uid in &uids {
        bed.put_token(uid, &token_of(uid, 600));
        bed.register(uid, spec());
    }
    for uid in &uids {
        assert_eq!(bed.volume_token(uid).await.unwrap().text, token_of(uid, 600));
    }
    bed.settle().await;
    assert_eq!(bed.requests(), 0);
    assert!(bed.elapsed() < Duration::from_secs(1), "{:?}", bed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_adopted_token_is_renewed_by_its_age() {
    let mut bed = Bed::new();
    bed.put_token("p", &token_of("p", 600));
    bed.register("p", spec());
    let token = bed.volume_token("p").await.unwrap();
    let due = i64::try_from(2885 - JITTER.as_secs()).unwrap() - 600;
    assert_eq!(token.renew_at.unix_seconds(), EPOCH_SECONDS + due);
    bed.told(&["p"]).await;
    let waited = bed.elapsed().as_secs();
    assert_eq!(i64::try_from(waited).unwrap(), due);
    assert_eq!(bed.volume_token("p").await.unwrap().text, "secret-1");
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_due_is_renewed_or_kept() {
    let bed = Bed::new();
    bed.put_token("p", &token_of("p", 3000));
    bed.register("p", spec());
    assert_eq!(bed.volume_token("p").await.unwrap().text, "secret-1");

    // Without an API server containers start with the old one.
    let bed = Bed::new();
    bed.api.issuing.lock().unwrap().mood = Mood::Fails(ApiErrorKind::Unreachable);
    bed.put_token("p", &token_of("p", 3000));
    bed.register("p", spec());
    assert_eq!(bed.volume_token("p").await.unwrap().text, token_of("p", 3000));
}

#[tokio::test(start_paused = true)]
async fn a_file_with_anything_else_means_a_request() {
    let contents = [
        Content::Text(Vec::new()),
        Content::Text(b"secret-0".to_vec()),
        Content::Text(vec![0xff; 100]),
        Content::Text(vec![b'a'; 100_000]),
        Content::Text(token_of("q", 600).into_bytes()),
        Content::Text(token_of("p", 366 * 24 * 3600).into_bytes()),
        Content::Text(token_of("p", -5).into_bytes()),
        Content::Hangs,
    ];
    for content in contents {
        let bed = Bed::new();
        bed.files.put_token("p", content.clone());
        bed.register("p", spec());
        assert_eq!(
            bed.volume_token("p").await.unwrap().text,
            "secret-1",
            "{content:?}"
        );
    }
    // And so does a pod without a volume yet, whatever another pod has.
    let bed = Bed::new();
    bed.put_token("q", &token_of("q", 600));
    bed.register("p", spec());
    assert_eq!(bed.volume_token("p").await.unwrap().text, "secret-1");
}

#[tokio::test(start_paused = true)]
async fn a_question_that_is_given_up_leaves_the_file_to_the_next() {
    let bed = Bed::new();
    bed.files.put_token("p", Content::Hangs);
    bed.register("p", spec());
    let given_up = tokio::time::timeout(Duration::from_millis(100), bed.volume_token("p")).await;
    assert!(given_up.is_err());
    bed.put_token("p", &token_of("p", 600));
    assert_eq!(bed.volume_token("p").await.unwrap().text, token_of("p", 600));
    assert_eq!(bed.requests(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_file_is_read_once() {
    let mut bed = Bed::new();
    bed.put_token("p", &token_of("p", 600));
    bed.register("p", spec());
    bed.volume_token("p").await.unwrap();
    bed.told(&["p"]).await;
    assert_eq!(bed.volume_token("p").await.unwrap().text, "secret-1");
    bed.told(&["p"]).await;
    bed.api.issuing.lock().unwrap().mood = Mood::Fails(ApiErrorKind::Unreachable);
    // What was issued counts, not what the volume shows.
    assert_eq!(bed.volume_token("p").await.unwrap().text, "secret-1");
}

#[tokio::test(start_paused = true)]
async fn of_two_sources_with_one_path_the_later_counts() {
    let bed = Bed::new();
    let spec = json!({"volumes": [{"name": "v", "projected": {"sources": [
        {"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 3607}},
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
    ]}}]});
    bed.put_token("p", &token_of("p", 600));
    bed.register("p", spec);
    assert_eq!(bed.volume_token("p").await.unwrap().text, token_of("p", 600));
    let other = TokenQuestion {
        audiences: vec!["vault".to_owned()],
        ..question("p")
    };
    assert_eq!(bed.objects.token(&other).await.unwrap().text, "secret-1");
}
