//! Connections that leave nothing behind.
//!
//! Whoever closes a connection first keeps its port for a minute, in case something late arrives. At hundreds of probes per
//! second that adds up, to one server as far as to the last free port. `SO_LINGER` with a second, which upstream sets, does
//! not change it on Linux and makes `close` wait instead; a linger of zero would answer the server with a reset in place of
//! an end. `TCP_LINGER2` below zero does what is wanted: the end is sent and acknowledged as usual, so that the server reads
//! an orderly end, and then the kernel forgets the connection at once.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

use rubelet_ports::host_and_port;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;

use crate::words;

/// Names that are looked up at the same time. A resolver that hangs keeps this many threads, and no more.
const LOOKUPS: usize = 8;

/// Opens connections.
pub(crate) struct Sockets {
    lookups: Arc<Semaphore>,
}

impl Default for Sockets {
    fn default() -> Self {
        Self {
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
        }
    }
}

impl Sockets {
    /// The first address of the host that answers. The error is a sentence as Go's dialer says it.
    pub(crate) async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, String> {
        let mut failure = None;
        for address in self.addresses(host, port).await? {
            match open(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => {
                    let problem = words::cause(&error);
                    failure.get_or_insert_with(|| format!("dial tcp {address}: connect: {problem}"));
                }
            }
        }
        let nowhere = || format!("dial tcp: lookup {host}: no such host");
        Err(failure.unwrap_or_else(nowhere))
    }

    async fn addresses(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
        if host.is_empty() {
            let local = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
            return Ok(local.map(|ip| SocketAddr::new(ip, port)).to_vec());
        }
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        let failed = |problem: String| format!("dial tcp: lookup {host}: {problem}");
        let place = Arc::clone(&self.lookups)
            .acquire_owned()
            .await
            .map_err(|error| failed(error.to_string()))?;
        let name = host_and_port(host, port);
        // The place is given back when the lookup ends, not when its caller has lost patience.
        let lookup = tokio::task::spawn_blocking(move || {
            let found = name.to_socket_addrs().map(Iterator::collect);
            drop(place);
            found
        });
        match lookup.await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(_)) => Err(failed("no such host".to_owned())),
            Err(error) => Err(failed(error.to_string())),
        }
    }
}

async fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    forget_when_closed(&socket)?;
    socket.set_nodelay(true)?;
    socket.connect(address).await
}

/// See the module's words.
fn forget_when_closed(socket: &TcpSocket) -> io::Result<()> {
    let value: libc::c_int = -1;
    let length = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or_default();
    #[expect(unsafe_code, reason = "no crate in the tree knows this option")]
    // SAFETY: the socket is open as long as it is borrowed, and the kernel reads `length` bytes of `value`.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_LINGER2,
            (&raw const value).cast(),
            length,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
