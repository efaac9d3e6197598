//! A small HTTP client that shows everything the server sends.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs::sign::any_supported_type;
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// An answer, whole or as far as it has come.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map_or("", |(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_slice(&self.body).with_context(|| self.text())
    }
}

/// One connection on which requests follow each other.
pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    /// Received and not used yet.
    buffer: Vec<u8>,
    is_chunked: bool,
}

/// A client's certificate and key as PEM.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Connection {
    fn new(stream: impl Stream + 'static) -> Self {
        Self {
            stream: Box::new(stream),
            buffer: Vec::new(),
            is_chunked: false,
        }
    }

    pub(crate) async fn plain(port: u16) -> Result<Self> {
        Ok(Self::new(TcpStream::connect(("127.0.0.1", port)).await?))
    }

    pub(crate) async fn local(path: &Path) -> Result<Self> {
        Ok(Self::new(UnixStream::connect(path).await?))
    }

    /// Trusts the last certificate of a file, for the name `node-a`.
    pub(crate) async fn tls(port: u16, trusted: &Path, identity: Option<&Identity>) -> Result<Self> {
        Self::tls_with(port, trusted, identity, tokio_rustls::rustls::ALL_VERSIONS).await
    }

    pub(crate) async fn tls_with(
        port: u16,
        trusted: &Path,
        identity: Option<&Identity>,
        versions: &[&'static tokio_rustls::rustls::SupportedProtocolVersion],
    ) -> Result<Self> {
        Self::tls_speaking(port, trusted, identity, versions, aws_lc_rs::default_provider()).await
    }

    /// With the cipher suites of the provider.
    pub(crate) async fn tls_speaking(
        port: u16,
        trusted: &Path,
        identity: Option<&Identity>,
        versions: &[&'static tokio_rustls::rustls::SupportedProtocolVersion],
        provider: CryptoProvider,
    ) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::pem_file_iter(trusted)?
            .last()
            .context("no certificate")?;
        roots.add(authority?)?;
        let builder = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(versions)?
            .with_root_certificates(roots);
        let configuration = match identity {
            None => builder.with_no_client_auth(),
            // Not checked here: some are of a kind that rustls itself refuses.
            Some(identity) => {
                let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes())?;
                let key = any_supported_type(&PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?)?;
                let pair = CertifiedKey::new(vec![certificate], key);
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair)))
            }
        };
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let name = ServerName::try_from("node-a")?;
        let connector = TlsConnector::from(Arc::new(configuration));
        Ok(Self::new(connector.connect(name, stream).await?))
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).await?;
        Ok(self.stream.flush().await?)
    }

    /// Asks and waits for the whole answer.
    pub(crate) async fn ask(&mut self, method: &str, path: &str) -> Result<Answer> {
        self.begin(method, path).await?;
        let mut answer = self.head().await?;
        if method != "HEAD" {
            self.rest_of(&mut answer).await?;
        }
        Ok(answer)
    }

    /// The same with headers of the test's own.
    pub(crate) async fn ask_with(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Answer> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: node-a\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        self.send(format!("{head}\r\n{body}").as_bytes()).await?;
        let mut answer = self.head().await?;
        if answer.status != 101 {
            self.rest_of(&mut answer).await?;
        }
        Ok(answer)
    }

    /// The next bytes of a connection that left HTTP.
    pub(crate) async fn take(&mut self, length: usize) -> Result<Vec<u8>> {
        while self.buffer.len() < length {
            ensure!(
                self.receive().await?,
                "the connection ended after {:?}",
                self.buffer
            );
        }
        Ok(self.buffer.drain(..length).collect())
    }

    /// Ends this side.
    pub(crate) async fn finish(&mut self) -> Result<()> {
        Ok(self.stream.shutdown().await?)
    }

    pub(crate) async fn get(&mut self, path: &str) -> Result<Answer> {
        self.ask("GET", path).await
    }

    pub(crate) async fn begin(&mut self, method: &str, path: &str) -> Result<()> {
        self.send(format!("{method} {path} HTTP/1.1\r\nHost: node-a\r\n\r\n").as_bytes())
            .await
    }

    /// Status and headers.
    pub(crate) async fn head(&mut self) -> Result<Answer> {
        let end = loop {
            if let Some(end) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break end;
            }
            ensure!(self.receive().await?, "the connection ended before the answer");
        };
        let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
        let head = String::from_utf8(head)?;
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1));
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let answer = Answer {
            status: status.context("no status")?.parse()?,
            headers,
            body: Vec::new(),
        };
        self.is_chunked = answer.header("transfer-encoding") == "chunked";
        Ok(answer)
    }

    pub(crate) async fn rest_of(&mut self, answer: &mut Answer) -> Result<()> {
        if self.is_chunked {
            while let Some(chunk) = self.chunk().await? {
                answer.body.extend(chunk);
            }
            return Ok(());
        }
        let length: usize = answer.header("content-length").parse()?;
        while self.buffer.len() < length {
            ensure!(self.receive().await?, "the answer is cut off");
        }
        answer.body = self.buffer.drain(..length).collect();
        Ok(())
    }

    /// The next piece of a chunked body; none at its end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            if let Some(line) = self.buffer.windows(2).position(|window| window == b"\r\n") {
                let length = usize::from_str_radix(str::from_utf8(&self.buffer[..line])?, 16)?;
                let (start, end) = (line + 2, line + 2 + length);
                if self.buffer.len() >= end + 2 {
                    let chunk = self.buffer[start..end].to_vec();
                    self.buffer.drain(..end + 2);
                    return Ok((length > 0).then_some(chunk));
                }
            }
            ensure!(self.receive().await?, "the answer is cut off");
        }
    }

    /// Waits until the body holds at least these many bytes more, and gives them.
    pub(crate) async fn body_until(&mut self, words: &str) -> Result<String> {
        let mut text = String::new();
        while !text.contains(words) {
            match self.chunk().await? {
                Some(chunk) => text.push_str(&String::from_utf8_lossy(&chunk)),
                None => bail!("the log ended before {words:?}: {text:?}"),
            }
        }
        Ok(text)
    }

    /// False when the other side has closed.
    pub(crate) async fn receive(&mut self) -> Result<bool> {
        let mut piece = [0; 16 * 1024];
        let length = tokio::time::timeout(DEADLINE, self.stream.read(&mut piece))
            .await
            .context("nothing comes")??;
        self.buffer.extend_from_slice(&piece[..length]);
        Ok(length > 0)
    }
}
