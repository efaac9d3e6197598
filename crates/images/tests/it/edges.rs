//! Further edges of the image actor in memory: objects of the API, files, plugins, tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use base64::Engine as _;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::{
    ConfigMap, LocalObjectReference, Pod, PodSpec, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::node::v1::RuntimeClass;
use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;
use rubelet_ports::api::{ApiError, ApiErrorKind, Changes, ObjectReader};
use rubelet_ports::{
    CredentialPlugins, DirectoryEntry, FileError, FileErrorKind, FileKind, FileReader, FileWriter,
    ImageRequest, ObjectFailure, PluginCall, PluginFailure, PodCertificate, PodObjects, Spawner, Token,
    TokenQuestion, TrustQuestion, WatchStream,
};
use tokio::sync::Semaphore;

use crate::fakes::request;

/// Secrets, service accounts and tokens.
#[derive(Default)]
pub(crate) struct FakeObjects {
    secrets: Mutex<BTreeMap<(String, String), Arc<Secret>>>,
    accounts: Mutex<BTreeMap<(String, String), ServiceAccount>>,
    pub(crate) asked_tokens: Mutex<Vec<TokenQuestion>>,
    token: Mutex<Option<String>>,
}

impl FakeObjects {
    /// A secret of the type that `kubectl create secret docker-registry` makes.
    pub(crate) fn put_login(&self, namespace: &str, name: &str, registry: &str, password: &str) {
        let auth = base64::engine::general_purpose::STANDARD.encode(format!("user:{password}"));
        let config = serde_json::json!({"auths": {registry: {"auth": auth}}});
        self.put_secret(
            namespace,
            name,
            "kubernetes.io/dockerconfigjson",
            ".dockerconfigjson",
            &config.to_string(),
        );
    }

    pub(crate) fn put_secret(&self, namespace: &str, name: &str, type_: &str, key: &str, content: &str) {
        let mut secret = Secret {
            type_: Some(type_.to_owned()),
            data: Some([(key.to_owned(), ByteString(content.as_bytes().to_vec()))].into()),
            ..Secret::default()
        };
        secret.metadata.namespace = Some(namespace.to_owned());
        secret.metadata.name = Some(name.to_owned());
        secret.metadata.uid = Some(format!("uid of {namespace}/{name}"));
        let key = (namespace.to_owned(), name.to_owned());
        self.secrets.lock().unwrap().insert(key, Arc::new(secret));
    }

    pub(crate) fn put_account(&self, namespace: &str, name: &str, annotations: &[(&str, &str)]) {
        let mut account = ServiceAccount::default();
        account.metadata.uid = Some(format!("uid of {namespace}/{name}"));
        let annotations = annotations
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        account.metadata.annotations = Some(annotations.collect());
        let key = (namespace.to_owned(), name.to_owned());
        self.accounts.lock().unwrap().insert(key, account);
    }

    pub(crate) fn issue(&self, token: Option<&str>) {
        *self.token.lock().unwrap() = token.map(str::to_owned);
    }
}

#[async_trait]
impl PodObjects for FakeObjects {
    fn register(&self, _: &Arc<Pod>) {}

    fn unregister(&self, _: &PodUid) {}

    fn changes(&self) -> BoxStream<'static, PodUid> {
        Box::pin(futures_util::stream::empty())
    }

    async fn config_map(&self, _: &str, _: &str) -> Result<Arc<ConfigMap>, ObjectFailure> {
        unreachable!("images have no ConfigMaps")
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, ObjectFailure> {
        let key = (namespace.to_owned(), name.to_owned());
        let found = self.secrets.lock().unwrap().get(&key).cloned();
        found.ok_or_else(|| ObjectFailure::NotFound(format!("secrets {name:?} not found")))
    }

    async fn services(&self, _: &str) -> Result<Vec<Arc<Service>>, ObjectFailure> {
        unreachable!("images have no Services")
    }

    async fn runtime_class(&self, _: &str) -> Result<Arc<RuntimeClass>, ObjectFailure> {
        unreachable!("images have no RuntimeClasses")
    }

    async fn token(&self, question: &TokenQuestion) -> Result<Token, ObjectFailure> {
        self.asked_tokens.lock().unwrap().push(question.clone());
        match self.token.lock().unwrap().clone() {
            Some(text) => Ok(Token {
                text,
                renew_at: Timestamp::EPOCH,
            }),
            None => Err(ObjectFailure::Unavailable("no tokens today".to_owned())),
        }
    }

    async fn trust_bundle(&self, _: &TrustQuestion) -> Result<Arc<str>, ObjectFailure> {
        unreachable!("images have no trust bundles")
    }

    async fn pod_certificate(
        &self,
        _: &Arc<Pod>,
        _: &str,
        _: usize,
    ) -> Result<PodCertificate, ObjectFailure> {
        unreachable!("images have no certificates")
    }
}

#[async_trait]
impl ObjectReader for FakeObjects {
    async fn config_map(&self, _: &str, _: &str) -> Result<ConfigMap, ApiError> {
        unreachable!("images have no ConfigMaps")
    }

    fn follow_config_map(&self, _: &str, _: &str) -> Changes<ConfigMap> {
        unreachable!("images have no ConfigMaps")
    }

    async fn secret(&self, _: &str, _: &str) -> Result<Secret, ApiError> {
        unreachable!("secrets come from what the pod is registered with")
    }

    fn follow_secret(&self, _: &str, _: &str) -> Changes<Secret> {
        unreachable!("secrets come from what the pod is registered with")
    }

    fn follow_services(&self) -> Changes<Service> {
        unreachable!("images have no Services")
    }

    fn follow_runtime_classes(&self) -> Changes<RuntimeClass> {
        unreachable!("images have no RuntimeClasses")
    }

    fn follow_trust_bundles(&self) -> Changes<ClusterTrustBundle> {
        unreachable!("images have no trust bundles")
    }

    async fn service_account(&self, namespace: &str, name: &str) -> Result<ServiceAccount, ApiError> {
        let key = (namespace.to_owned(), name.to_owned());
        let found = self.accounts.lock().unwrap().get(&key).cloned();
        found.ok_or_else(|| {
            let message = format!("serviceaccounts {name:?} not found");
            ApiError::new("get service account", ApiErrorKind::NotFound, message)
        })
    }
}

/// A request of a pod in a namespace, with pull secrets and a service account.
pub(crate) fn pod_request(
    namespace: &str,
    uid: &str,
    image: &str,
    policy: &str,
    secrets: &[&str],
    account: Option<&str>,
) -> ImageRequest {
    let mut request = request(uid, image, policy);
    let pod = Arc::make_mut(&mut request.pod);
    pod.metadata.namespace = Some(namespace.to_owned());
    pod.metadata.name = Some(format!("pod-{uid}"));
    let reference = |name: &&str| LocalObjectReference {
        name: (*name).to_owned(),
    };
    pod.spec = Some(PodSpec {
        image_pull_secrets: Some(secrets.iter().map(reference).collect()),
        service_account_name: account.map(str::to_owned),
        ..PodSpec::default()
    });
    request
}

/// Files, which survive the actor, as on a disk.
#[derive(Default)]
pub(crate) struct FakeFiles {
    files: Mutex<BTreeMap<PathBuf, Vec<u8>>>,
    directories: Mutex<BTreeSet<PathBuf>>,
    /// How many more changes succeed; `None` is all.
    changes_left: Mutex<Option<usize>>,
    pub(crate) writes: Mutex<usize>,
}

impl FakeFiles {
    pub(crate) fn put(&self, path: &str, content: &str) {
        let path = PathBuf::from(path);
        self.files
            .lock()
            .unwrap()
            .insert(path, content.as_bytes().to_vec());
    }

    pub(crate) fn text(&self, path: &Path) -> Option<String> {
        let bytes = self.files.lock().unwrap().get(path).cloned();
        bytes.map(|bytes| String::from_utf8(bytes).unwrap())
    }

    /// Names of files below a directory.
    pub(crate) fn below(&self, directory: &str) -> Vec<PathBuf> {
        let files = self.files.lock().unwrap();
        files
            .keys()
            .filter(|path| path.starts_with(directory))
            .cloned()
            .collect()
    }

    /// Everything that is written down.
    pub(crate) fn all_text(&self) -> String {
        let files = self.files.lock().unwrap();
        files
            .values()
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
            .collect()
    }

    pub(crate) fn allow_changes(&self, count: Option<usize>) {
        *self.changes_left.lock().unwrap() = count;
    }

    fn change(&self, path: &Path) -> Result<(), FileError> {
        let mut left = self.changes_left.lock().unwrap();
        match left.as_mut() {
            Some(0) => Err(error(path, FileErrorKind::NoSpace)),
            Some(count) => {
                *count -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

fn error(path: &Path, kind: FileErrorKind) -> FileError {
    FileError {
        path: path.to_owned(),
        kind,
        message: format!("{kind:?}"),
    }
}

#[async_trait]
impl FileReader for FakeFiles {
    async fn read(&self, path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
        let found = self.files.lock().unwrap().get(path).cloned();
        let found = found.ok_or_else(|| error(path, FileErrorKind::NotFound))?;
        assert!(found.len() as u64 <= limit_bytes);
        Ok(found)
    }

    async fn read_within(&self, _: &Path, _: &Path, _: u64) -> Result<Vec<u8>, FileError> {
        unreachable!("images read no files of others")
    }

    async fn read_end(&self, _: &Path, _: u64) -> Result<Vec<u8>, FileError> {
        unreachable!("images read whole files")
    }

    async fn list(&self, directory: &Path) -> Result<Vec<DirectoryEntry>, FileError> {
        if !self.directories.lock().unwrap().contains(directory) {
            return Err(error(directory, FileErrorKind::NotFound));
        }
        let files = self.files.lock().unwrap();
        let inside = files.keys().filter(|path| path.parent() == Some(directory));
        let entry = |path: &PathBuf| DirectoryEntry {
            name: path.file_name().unwrap().to_str().unwrap().to_owned(),
            kind: FileKind::File,
        };
        Ok(inside.map(entry).collect())
    }

    async fn kind(&self, _: &Path) -> Result<FileKind, FileError> {
        unreachable!("images know what they read")
    }

    fn watch(&self, _: &Path) -> WatchStream {
        unreachable!("images watch no files")
    }
}

#[async_trait]
impl FileWriter for FakeFiles {
    async fn write(&self, path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
        assert_eq!(mode, 0o600, "nobody else reads it");
        self.change(path)?;
        *self.writes.lock().unwrap() += 1;
        self.files
            .lock()
            .unwrap()
            .insert(path.to_owned(), content.to_vec());
        Ok(())
    }

    async fn write_in_place(&self, _: &Path, _: &[u8], _: u32) -> Result<(), FileError> {
        unreachable!("a record is never half written")
    }

    async fn create_directory(&self, path: &Path, mode: u32) -> Result<(), FileError> {
        assert_eq!(mode, 0o700, "nobody else reads it");
        self.change(path)?;
        self.directories.lock().unwrap().insert(path.to_owned());
        Ok(())
    }

    async fn link(&self, _: &Path, _: &Path) -> Result<(), FileError> {
        unreachable!("images make no links")
    }

    async fn remove_file(&self, path: &Path) -> Result<(), FileError> {
        self.change(path)?;
        self.files.lock().unwrap().remove(path);
        Ok(())
    }

    async fn remove_tree(&self, _: &Path) -> Result<(), FileError> {
        unreachable!("images remove single files")
    }
}

/// Tasks that run only when told.
#[derive(Default)]
pub(crate) struct FakeSpawner(Mutex<Vec<BoxFuture<'static, ()>>>);

impl FakeSpawner {
    /// Lets every task go on as far as it can; how many are left?
    pub(crate) fn run(&self) -> usize {
        let mut tasks = std::mem::take(&mut *self.0.lock().unwrap());
        tasks.retain_mut(|task| task.now_or_never().is_none());
        let mut all = self.0.lock().unwrap();
        all.append(&mut tasks);
        all.len()
    }
}

impl Spawner for FakeSpawner {
    fn spawn(&self, _: &str, future: BoxFuture<'static, ()>) {
        self.0.lock().unwrap().push(future);
    }
}

/// Plugins that answer what they are told to, and note what they were asked.
pub(crate) struct FakePlugins {
    pub(crate) answer: Mutex<Result<Vec<u8>, PluginFailure>>,
    pub(crate) calls: Mutex<Vec<PluginCall>>,
    slow: Option<Semaphore>,
}

impl FakePlugins {
    pub(crate) fn new(answer: &serde_json::Value) -> Self {
        Self {
            answer: Mutex::new(Ok(answer.to_string().into_bytes())),
            calls: Mutex::default(),
            slow: None,
        }
    }

    /// Runs end only when told.
    pub(crate) fn slow(answer: &serde_json::Value) -> Self {
        Self {
            slow: Some(Semaphore::new(0)),
            ..Self::new(answer)
        }
    }

    pub(crate) fn finish(&self, count: usize) {
        self.slow.as_ref().unwrap().add_permits(count);
    }

    pub(crate) fn set(&self, answer: Result<&serde_json::Value, PluginFailure>) {
        *self.answer.lock().unwrap() = answer.map(|answer| answer.to_string().into_bytes());
    }

    /// What the plugins read since the last time.
    pub(crate) fn inputs(&self) -> Vec<serde_json::Value> {
        let calls = std::mem::take(&mut *self.calls.lock().unwrap());
        calls
            .iter()
            .map(|call| serde_json::from_slice(&call.input).unwrap())
            .collect()
    }
}

#[async_trait]
impl CredentialPlugins for FakePlugins {
    async fn run(&self, call: PluginCall) -> Result<Vec<u8>, PluginFailure> {
        self.calls.lock().unwrap().push(call);
        if let Some(slow) = &self.slow {
            slow.acquire().await.unwrap().forget();
        }
        self.answer.lock().unwrap().clone()
    }
}
