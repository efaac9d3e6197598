//! Service account tokens.

use std::time::Duration;

use rubelet_objects::ChangeDetection;
use rubelet_ports::api::ApiErrorKind;
use rubelet_ports::{PodObjects as _, Token, TokenQuestion};
use serde_json::json;

use crate::api::Mood;
use crate::bed::{Bed, EPOCH_SECONDS, JITTER, unavailable};

const HOUR: u64 = 3600;
const UNREACHABLE: Mood = Mood::Fails(ApiErrorKind::Unreachable);

fn question(uid: &str, expiration_seconds: i64) -> TokenQuestion {
    TokenQuestion {
        namespace: "n".to_owned(),
        service_account: "account".to_owned(),
        audiences: vec!["vault".to_owned()],
        expiration_seconds,
        pod_name: format!("pod-{uid}"),
        pod_uid: uid.to_owned(),
    }
}

impl Bed {
    fn set_issuing(&self, mood: Mood) {
        self.api.issuing.lock().unwrap().mood = mood;
    }

    fn issued(&self) -> usize {
        self.api.issuing.lock().unwrap().requests.len()
    }

    async fn token(&self, question: &TokenQuestion) -> Token {
        self.objects.token(question).await.unwrap()
    }

    /// Seconds since the start, rounded to the nearest.
    fn second(&self) -> u64 {
        (self.elapsed() + Duration::from_millis(500)).as_secs()
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_is_bound_to_its_pod_and_kept() {
    let bed = Bed::new();
    bed.register("p", json!({}));
    let question = question("p", 3607);
    let token = bed.token(&question).await;
    assert_eq!(token.text, "secret-1");
    let renew_at = i64::try_from(HOUR * 4 / 5).unwrap();
    let jitter = i64::try_from(JITTER.as_secs()).unwrap();
    // 80 % of 3607 s, less the jitter.
    assert_eq!(
        token.renew_at.unix_seconds(),
        EPOCH_SECONDS + renew_at + 5 - jitter
    );
    assert!(!format!("{token:?}").contains("secret"));
    assert_eq!(bed.token(&question).await, token);

    let requests = bed.api.issuing.lock().unwrap().requests.clone();
    assert_eq!(requests.len(), 1);
    let spec = serde_json::to_value(&requests[0].spec).unwrap();
    let expected = json!({"audiences": ["vault"], "expirationSeconds": 3607, "boundObjectRef":
        {"apiVersion": "v1", "kind": "Pod", "name": "pod-p", "uid": "p"}});
    assert_eq!(spec, expected);

    // Another audience is another token.
    let other = TokenQuestion {
        audiences: Vec::new(),
        ..question
    };
    assert_eq!(bed.token(&other).await.text, "secret-2");
    let spec = bed.api.issuing.lock().unwrap().requests[1].spec.clone();
    assert_eq!(spec.unwrap().audiences, None);
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_told_when_its_token_is_due() {
    // Whatever the clocks of node and API server say.
    for ahead_seconds in [0, 7200, -7200] {
        let mut bed = Bed::with(ChangeDetection::Watch, ahead_seconds);
        bed.register("p", json!({}));
        let question = question("p", 3600);
        assert_eq!(bed.token(&question).await.text, "secret-1");
        bed.told(&["p"]).await;
        assert_eq!(bed.second(), 2880 - JITTER.as_secs(), "{ahead_seconds}");
        assert_eq!(bed.token(&question).await.text, "secret-2");
        bed.told(&["p"]).await;
        assert_eq!(bed.second(), 2 * (2880 - JITTER.as_secs()), "{ahead_seconds}");
        // A pod that does not ask for the new token is reported again.
        bed.told(&["p"]).await;
        assert_eq!(
            bed.second(),
            2 * (2880 - JITTER.as_secs()) + 60,
            "{ahead_seconds}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_token_is_renewed_every_day_and_a_shortened_one_in_time() {
    let mut bed = Bed::new();
    bed.register("p", json!({}));
    bed.token(&question("p", 30 * 24 * 3600)).await;
    bed.told(&["p"]).await;
    assert_eq!(bed.second(), 24 * HOUR - JITTER.as_secs());

    let mut bed = Bed::new();
    bed.api.issuing.lock().unwrap().max_seconds = Some(1000);
    bed.register("p", json!({}));
    bed.token(&question("p", 3600)).await;
    bed.told(&["p"]).await;
    assert_eq!(bed.second(), 800 - JITTER.as_secs());
}

#[tokio::test(start_paused = true)]
async fn an_old_token_is_good_until_it_ends() {
    let mut bed = Bed::new();
    bed.register("p", json!({}));
    let question = question("p", 3600);
    bed.token(&question).await;
    bed.told(&["p"]).await;
    bed.set_issuing(UNREACHABLE);
    // The pod asks whenever it is reported, and the tries become rarer.
    let mut waits = Vec::new();
    for _ in 0..6 {
        let before = bed.second();
        assert_eq!(bed.token(&question).await.text, "secret-1");
        bed.told(&["p"]).await;
        waits.push(bed.second() - before);
    }
    assert_eq!(waits, [5, 10, 20, 40, 60, 60]);
    // In between the API server is not asked.
    assert_eq!(bed.token(&question).await.text, "secret-1");
    let issued = bed.issued();
    assert_eq!(bed.token(&question).await.text, "secret-1");
    assert_eq!(bed.issued(), issued);

    tokio::time::sleep_until(bed.start + Duration::from_secs(3601)).await;
    let failure = bed.objects.token(&question).await;
    let is_ended = failure.as_ref().is_err_and(|failure| {
        let text = failure.to_string();
        text == "token expired and refresh failed: call: Unreachable"
            || text == "failed to fetch token: call: Unreachable"
    });
    assert!(is_ended, "{failure:?}");
    bed.set_issuing(Mood::Well);
    assert_ne!(bed.token(&question).await.text, "secret-1");
}

#[tokio::test(start_paused = true)]
async fn no_token_at_all_is_an_error() {
    let bed = Bed::new();
    bed.register("p", json!({}));
    bed.set_issuing(Mood::Fails(ApiErrorKind::NotFound));
    let failure = bed.objects.token(&question("p", 3600)).await;
    assert_eq!(failure, Err(unavailable("failed to fetch token: call: NotFound")));
    bed.set_issuing(Mood::Hangs);
    let failure = bed.objects.token(&question("p", 3600)).await;
    assert_eq!(
        failure,
        Err(unavailable("failed to fetch token: no result within 100 s"))
    );
    bed.set_issuing(Mood::Well);
    // The first of them was asked six times.
    assert_eq!(bed.token(&question("p", 3600)).await.text, "secret-8");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_does_not_know_a_young_pod_yet_is_asked_again() {
    let bed = Bed::new();
    bed.register("p", json!({}));
    bed.set_issuing(Mood::Fails(ApiErrorKind::NotFound));
    let objects = bed.objects.clone();
    let asked = tokio::spawn(async move { objects.token(&question("p", 3600)).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!asked.is_finished());
    bed.set_issuing(Mood::Well);
    assert!(asked.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_turn_is_no_silence_of_the_server() {
    // As a restart of a full node with kubeAPIQPS 5 has it.
    let bed = Bed::new();
    bed.api.issuing.lock().unwrap().pace = Duration::from_millis(200);
    let asked = (0..110).map(|number| {
        let uid = format!("p{number}");
        bed.register(&uid, json!({}));
        let objects = bed.objects.clone();
        tokio::spawn(async move { objects.token(&question(&uid, 3600)).await })
    });
    for one in asked.collect::<Vec<_>>() {
        one.await.unwrap().unwrap();
    }
    assert_eq!((bed.issued(), bed.second()), (110, 22));
}

#[tokio::test(start_paused = true)]
async fn the_same_question_at_once_makes_one_request() {
    let bed = Bed::new();
    bed.register("p", json!({}));
    let asked = (0..50).map(|_| {
        let objects = bed.objects.clone();
        tokio::spawn(async move { objects.token(&question("p", 3600)).await })
    });
    for one in asked.collect::<Vec<_>>() {
        assert_eq!(one.await.unwrap().unwrap().text, "secret-1");
    }
    assert_eq!(bed.issued(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_asks_for_a_pause_gets_it() {
    let busy = |seconds: u64| {
        Mood::Fails(ApiErrorKind::Busy {
            retry_after: Some(Duration::from_secs(seconds)),
        })
    };
    let mut bed = Bed::new();
    bed.register("p", json!({}));
    bed.set_issuing(busy(10));
    let objects = bed.objects.clone();
    let asked = tokio::spawn(async move { objects.token(&question("p", 3600)).await });
    bed.settle().await;
    bed.set_issuing(Mood::Well);
    assert_eq!(asked.await.unwrap().unwrap().text, "secret-2");
    // As long as was asked for, and a part of it by chance.
    assert_eq!(bed.second(), 10 + JITTER.as_secs());

    // A token that is still good is answered at once, and the next try comes after the pause.
    bed.told(&["p"]).await;
    let due = bed.second();
    bed.set_issuing(busy(100));
    assert_eq!(bed.token(&question("p", 3600)).await.text, "secret-2");
    assert_eq!(bed.second(), due);
    bed.told(&["p"]).await;
    assert_eq!(bed.second(), due + 100);

    // Who asks for more patience than a pod has is no longer waited for.
    let failure = bed.objects.token(&question("q", 3600)).await;
    assert!(failure.is_err(), "{failure:?}");
    assert_eq!(bed.second(), due + 100);
}

#[tokio::test(start_paused = true)]
async fn tokens_of_pods_that_are_gone_are_forgotten() {
    let mut bed = Bed::new();
    bed.register("p", json!({}));
    bed.register("q", json!({}));
    bed.token(&question("p", 3600)).await;
    bed.token(&question("q", 3600)).await;
    bed.unregister("p");
    bed.told(&["q"]).await;
    assert_eq!(bed.token(&question("p", 3600)).await.text, "secret-3");
    assert_eq!(bed.token(&question("q", 3600)).await.text, "secret-4");
}

#[tokio::test(start_paused = true)]
async fn tokens_of_projected_volumes_are_fetched_ahead() {
    let bed = Bed::new();
    let source = |fields: serde_json::Value| json!({"serviceAccountToken": fields});
    let spec = json!({"volumes": [{"name": "v", "projected": {"sources": [
        source(json!({"path": "a", "audience": "vault", "expirationSeconds": 600})),
        source(json!({"path": "b", "audience": ""})),
        source(json!({"path": "c"})),
    ]}}]});
    let pod = bed.register("p", spec);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(bed.issued(), 2);
    // Queries find them, also while they are under way.
    bed.token(&question("p", 600)).await;
    let other = TokenQuestion {
        audiences: Vec::new(),
        ..question("p", 3600)
    };
    bed.token(&other).await;
    bed.objects.register(&pod);
    bed.settle().await;
    assert_eq!(bed.issued(), 2);
}
