//! Credential provider plugins: who is asked for what, how long an answer is good, and what a bad plugin can do.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use rubelet_images::{
    CredentialProviders, CredentialSources, ImagesSettings, PodAccounts, read_configuration,
};
use rubelet_ports::{ImageRequest, PluginFailure};
use serde_json::{Value, json};

use crate::edges::{FakeObjects, FakePlugins, pod_request};
use crate::fakes::{Bench, image, poll};

const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

struct Place {
    bench: Bench,
    objects: Arc<FakeObjects>,
    plugins: Arc<FakePlugins>,
}

fn provider(changes: &Value) -> Value {
    let mut provider =
        json!({"name": "p", "matchImages": ["*.io"], "defaultCacheDuration": "1m", "apiVersion": V1});
    for (key, value) in changes.as_object().unwrap() {
        provider[key] = value.clone();
    }
    provider
}

fn answer(changes: &Value) -> Value {
    let mut answer = json!({"apiVersion": V1, "kind": "CredentialProviderResponse", "cacheKeyType": "Image",
        "auth": {"*.io": {"username": "u", "password": "from-plugin"}}});
    for (key, value) in changes.as_object().unwrap() {
        answer[key] = value.clone();
    }
    answer
}

fn place(provider: &Value, plugins: FakePlugins, in_cluster: bool) -> Place {
    place_of(&[provider], plugins, in_cluster)
}

fn place_of(providers: &[&Value], plugins: FakePlugins, in_cluster: bool) -> Place {
    let file = json!({"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": providers});
    let settings = read_configuration(&[("f".to_owned(), file.to_string().into_bytes())], true).unwrap();
    let objects = Arc::<FakeObjects>::default();
    let plugins = Arc::new(plugins);
    let accounts = in_cluster.then(|| PodAccounts {
        reader: objects.clone(),
        objects: objects.clone(),
    });
    let images_settings = ImagesSettings {
        registry_pull_qps: 0.0,
        serialize_pulls: false,
        ..ImagesSettings::default()
    };
    let bench = Bench::built(images_settings, None, |images, _, clock| {
        let providers = CredentialProviders::new(settings, plugins.clone(), accounts, clock.clone(), None);
        images.with_credentials(CredentialSources {
            objects: Some(objects.clone()),
            node_files: None,
            providers: Some(Arc::new(providers)),
        })
    });
    for name in ["r.io/a:1", "r.io/b:1", "s.io/a:1", "r.com/a:1"] {
        bench
            .service
            .add_to_registry(name, image(&format!("sha256:{name}"), 1));
    }
    Place {
        bench,
        objects,
        plugins,
    }
}

fn pod(uid: &str, image: &str, account: Option<&str>) -> ImageRequest {
    pod_request("ns", uid, image, "Always", &[], account)
}

/// The passwords that pulling these images shows, and how often the plugin was asked.
fn pull(place: &Place, images: &[&str]) -> (Vec<Option<String>>, usize) {
    for image in images {
        place.bench.ensure(pod("u", image, None)).unwrap();
    }
    (place.bench.service.shown(), place.plugins.inputs().len())
}

fn from_plugin(count: usize) -> Vec<Option<String>> {
    vec![Some("from-plugin".to_owned()); count]
}

#[test]
fn a_plugin_is_asked_for_its_images_only() {
    let place = place(
        &provider(&json!({})),
        FakePlugins::new(&answer(&json!({}))),
        false,
    );
    assert_eq!(pull(&place, &["r.com/a:1"]), (vec![None], 0));
    place.bench.ensure(pod("u", "r.io/a:1", None)).unwrap();
    assert_eq!(
        place.plugins.inputs(),
        [json!({"apiVersion": V1, "kind": "CredentialProviderRequest", "image": "r.io/a"})]
    );
    assert_eq!(place.bench.service.shown(), from_plugin(1));
}

#[test]
fn answers_are_kept_as_the_plugin_says() {
    let check = |changes: Value, images: &[&str], runs: usize| {
        let place = place(&provider(&json!({})), FakePlugins::new(&answer(&changes)), false);
        assert_eq!(
            pull(&place, images),
            (from_plugin(images.len()), runs),
            "{changes}"
        );
    };
    let images = ["r.io/a:1", "r.io/a:1", "r.io/b:1", "s.io/a:1"];
    check(json!({"cacheKeyType": "Image"}), &images, 3);
    check(json!({"cacheKeyType": "Registry"}), &images, 2);
    check(json!({"cacheKeyType": "Global"}), &images, 1);
    check(
        json!({"cacheKeyType": "Global", "cacheDuration": "0s"}),
        &images,
        4,
    );
    check(
        json!({"cacheKeyType": "Global", "cacheDuration": "-1s"}),
        &images,
        4,
    );

    // The plugin's word, and without one the configuration's.
    let check = |changes: Value, seconds: u64| {
        let place = place(&provider(&json!({})), FakePlugins::new(&answer(&changes)), false);
        assert_eq!(pull(&place, &["r.io/a:1"]).1, 1);
        place.bench.clock.advance(Duration::from_secs(seconds));
        assert_eq!(pull(&place, &["r.io/a:1"]).1, 0, "{changes}");
        place.bench.clock.advance(Duration::from_secs(1));
        assert_eq!(pull(&place, &["r.io/a:1"]).1, 1, "{changes}");
    };
    check(json!({}), 60);
    check(json!({"cacheDuration": "10m"}), 600);
    let never = place(
        &provider(&json!({"defaultCacheDuration": "0s"})),
        FakePlugins::new(&answer(&json!({}))),
        false,
    );
    assert_eq!(pull(&never, &["r.io/a:1", "r.io/a:1"]).1, 2);
}

#[test]
fn those_who_ask_the_same_share_a_run() {
    let place = place(
        &provider(&json!({})),
        FakePlugins::slow(&answer(&json!({}))),
        false,
    );
    let mut first = place.bench.asking(pod("u", "r.io/a:1", None));
    let mut second = place.bench.asking(pod("v", "r.io/a:1", None));
    let mut other = place.bench.asking(pod("w", "r.io/b:1", None));
    for asking in [&mut first, &mut second, &mut other] {
        assert_eq!(poll(asking), None);
    }
    assert_eq!(place.plugins.inputs().len(), 2);
    // One leaves; the other has its answer all the same.
    drop(first);
    place.plugins.finish(2);
    assert!(second.now_or_never().unwrap().is_ok());
    assert!(other.now_or_never().unwrap().is_ok());
}

#[test]
fn a_hanging_plugin_holds_nobody_else_up() {
    let place = place(
        &provider(&json!({})),
        FakePlugins::slow(&answer(&json!({}))),
        false,
    );
    let mut stuck = place.bench.asking(pod("u", "r.io/a:1", None));
    assert_eq!(poll(&mut stuck), None);
    assert!(place.bench.ensure(pod("v", "r.com/a:1", None)).is_ok());
    place
        .bench
        .service
        .add_present("r.io/b:1", image("sha256:here", 1));
    let there = pod_request("ns", "w", "r.io/b:1", "IfNotPresent", &[], None);
    assert!(place.bench.ensure(there).is_ok(), "what is there needs no plugin");
    assert_eq!(
        place.plugins.calls.lock().unwrap()[0].deadline,
        Duration::from_secs(60)
    );
}

#[test]
fn a_plugin_that_hangs_often_takes_no_place_of_another() {
    let stuck = provider(&json!({"name": "stuck", "matchImages": ["r.io"]}));
    let other = provider(&json!({"name": "other", "matchImages": ["s.io"]}));
    let place = place_of(&[&stuck, &other], FakePlugins::slow(&answer(&json!({}))), false);
    let mut hanging: Vec<_> = (0..40)
        .map(|number| {
            place
                .bench
                .asking(pod("u", &format!("r.io/image-{number}:1"), None))
        })
        .collect();
    for asking in &mut hanging {
        assert_eq!(poll(asking), None);
    }
    let begun = place.plugins.inputs().len();
    assert!(begun < hanging.len(), "{begun} programs at a time");
    let mut healthy = place.bench.asking(pod("v", "s.io/a:1", None));
    assert_eq!(poll(&mut healthy), None);
    assert_eq!(place.plugins.inputs()[0]["image"], "s.io/a", "it runs at once");
}

#[test]
fn a_bad_plugin_gives_nothing_and_is_named_when_the_pull_fails() {
    let failure = |reason: &str| {
        Err(PluginFailure {
            reason: reason.to_owned(),
        })
    };
    let check = |said: Result<&Value, PluginFailure>, expected: &str| {
        let place = place(
            &provider(&json!({"env": [{"name": "KEY", "value": "leaked"}]})),
            FakePlugins::new(&json!({})),
            false,
        );
        place.plugins.set(said);
        place.bench.service.protect("r.io/a:1", &["good"]);
        let refused = place.bench.ensure(pod("u", "r.io/a:1", None)).unwrap_err();
        assert_eq!(
            refused.message,
            format!("401 Unauthorized for password  (credential provider p: {expected})")
        );
        assert_eq!(place.bench.service.shown(), [None]);
        // Nothing of it is kept.
        place.plugins.set(Ok(&answer(&json!({}))));
        place.bench.service.protect("r.io/a:1", &["from-plugin"]);
        assert!(place.bench.ensure(pod("v", "r.io/a:1", None)).is_ok());
        assert!(!place.bench.events().concat().contains("leaked"));
    };
    check(failure("exit status: 1"), "exit status: 1");
    check(
        failure("it has not ended within 60 s"),
        "it has not ended within 60 s",
    );
    check(
        Ok(&json!("leaked")),
        "its answer is no JSON object with apiVersion and kind",
    );
    check(
        Ok(&answer(&json!({"leaked": 1}))),
        "error decoding credential provider plugin response from stdout",
    );
    check(
        Ok(&answer(&json!({"cacheKeyType": "leaked"}))),
        "credential provider plugin did not return a valid cacheKeyType",
    );
}

fn with_token(changes: &Value) -> Value {
    let mut attributes = json!({"serviceAccountTokenAudience": "registry", "cacheType": "ServiceAccount",
        "requireServiceAccount": true, "requiredServiceAccountAnnotationKeys": ["team"],
        "optionalServiceAccountAnnotationKeys": ["region"]});
    for (key, value) in changes.as_object().unwrap() {
        attributes[key] = value.clone();
    }
    provider(&json!({"tokenAttributes": attributes}))
}

#[test]
fn a_plugin_gets_the_token_of_the_pods_account() {
    let place = place(
        &with_token(&json!({})),
        FakePlugins::new(&answer(&json!({}))),
        true,
    );
    place.objects.issue(Some("the-token"));
    place.objects.put_account(
        "ns",
        "builder",
        &[("team", "blue"), ("region", "eu"), ("other", "x")],
    );
    place.bench.ensure(pod("u", "r.io/a:1", Some("builder"))).unwrap();
    assert_eq!(
        place.plugins.inputs(),
        [
            json!({"apiVersion": V1, "kind": "CredentialProviderRequest", "image": "r.io/a",
            "serviceAccountToken": "the-token", "serviceAccountAnnotations": {"team": "blue", "region": "eu"}})
        ]
    );
    let asked = place.objects.asked_tokens.lock().unwrap()[0].clone();
    assert_eq!(asked.audiences, ["registry"]);
    assert_eq!((asked.pod_name.as_str(), asked.pod_uid.as_str()), ("pod-u", "u"));
    assert_eq!(
        (asked.namespace.as_str(), asked.service_account.as_str()),
        ("ns", "builder")
    );
    // Another pod of the account has the same credentials; another account has not.
    place.bench.ensure(pod("v", "r.io/a:1", Some("builder"))).unwrap();
    assert_eq!(place.plugins.inputs().len(), 0);
    place.objects.put_account("ns", "other", &[("team", "blue")]);
    place.bench.ensure(pod("w", "r.io/a:1", Some("other"))).unwrap();
    assert_eq!(place.plugins.inputs().len(), 1);
    // An account that is not the one any more is another one.
    place.objects.put_account("ns", "builder", &[("team", "red")]);
    place.bench.ensure(pod("x", "r.io/a:1", Some("builder"))).unwrap();
    assert_eq!(place.plugins.inputs().len(), 1);
}

#[test]
fn accounts_that_do_not_ask_for_it_are_left_alone() {
    let check =
        |attributes: Value, account: Option<&str>, in_cluster: bool, runs: usize, failure: Option<&str>| {
            let place = place(
                &with_token(&attributes),
                FakePlugins::new(&answer(&json!({}))),
                in_cluster,
            );
            place.objects.put_account("ns", "plain", &[]);
            place.objects.put_account("ns", "wishing", &[("team", "blue")]);
            if failure.is_some() {
                place.bench.service.protect("r.io/a:1", &["good"]);
            } else {
                place.objects.issue(Some("the-token"));
            }
            let found = place.bench.ensure(pod("u", "r.io/a:1", account));
            let message = found.err().map(|failure| failure.message);
            let expected = failure
                .map(|words| format!("401 Unauthorized for password  (credential provider p: {words})"));
            assert_eq!(message, expected);
            assert_eq!(place.plugins.inputs().len(), runs, "{attributes} {account:?}");
        };
    check(json!({}), None, true, 0, None);
    check(json!({}), Some("plain"), true, 0, None);
    check(json!({}), Some("wishing"), true, 1, None);
    let for_all = json!({"requireServiceAccount": false, "requiredServiceAccountAnnotationKeys": []});
    check(for_all.clone(), None, true, 1, None);
    check(for_all.clone(), None, false, 1, None);
    check(for_all, Some("plain"), true, 1, None);
    check(
        json!({}),
        Some("gone"),
        true,
        0,
        Some("failed to get service account: get service account: serviceaccounts \"gone\" not found"),
    );
    check(
        json!({}),
        Some("wishing"),
        true,
        0,
        Some("failed to get service account token: no tokens today"),
    );
    check(
        json!({}),
        Some("wishing"),
        false,
        0,
        Some("cannot get ServiceAccounts when kubelet is in standalone mode"),
    );
}

#[test]
fn a_token_that_comes_back_is_good_for_itself_only() {
    let echo = answer(&json!({"auth": {"*.io": {"username": "u", "password": "the-token"}}}));
    let place_with = |cache: &str| {
        let place = place(
            &with_token(&json!({"cacheType": cache})),
            FakePlugins::new(&echo),
            true,
        );
        place.objects.issue(Some("the-token"));
        place.objects.put_account("ns", "builder", &[("team", "blue")]);
        place
    };
    let refused = place_with("ServiceAccount");
    refused
        .bench
        .ensure(pod("u", "r.io/a:1", Some("builder")))
        .unwrap();
    assert_eq!(refused.bench.service.shown(), [None]);
    let kept = place_with("Token");
    kept.bench.ensure(pod("u", "r.io/a:1", Some("builder"))).unwrap();
    kept.bench.ensure(pod("u", "r.io/a:1", Some("builder"))).unwrap();
    assert_eq!(
        kept.bench.service.shown(),
        [Some("the-token".to_owned()), Some("the-token".to_owned())]
    );
    assert_eq!(kept.plugins.inputs().len(), 1);
    kept.objects.issue(Some("another-token"));
    kept.bench.ensure(pod("v", "r.io/a:1", Some("builder"))).unwrap();
    assert_eq!(kept.plugins.inputs().len(), 1, "another token, another answer");
}
