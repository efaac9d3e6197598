//! Connections that leave no port in `TIME_WAIT`.
//!
//! The side that closes a connection first keeps its port for a minute, in case a late packet arrives. At hundreds of probes per
//! second to one server that can use up all free ports. `SO_LINGER` with a second, which upstream sets, does not change it on
//! Linux and makes `close` wait instead; a linger of zero would send the server a reset in place of an orderly close. With
//! `TCP_LINGER2` below zero the close is sent and acknowledged as usual, and then the kernel forgets the connection at once.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd as _;

use rubelet_model::observation::PodUid;
use tokio::net::{TcpSocket, TcpStream};

use crate::error_text;
use crate::lookup::{Lookups, PlaceWait};

/// Opens the connections of one call.
pub(crate) struct Sockets<'a> {
    lookups: &'a Lookups,
    pod: &'a PodUid,
    wait: PlaceWait,
}

impl<'a> Sockets<'a> {
    pub(crate) fn new(lookups: &'a Lookups, pod: &'a PodUid) -> Self {
        Self {
            lookups,
            pod,
            wait: PlaceWait::default(),
        }
    }

    /// For a caller that timed out: why no connection was tried, where it still waited for a place to look the host up.
    pub(crate) fn no_place(&self, host: &str) -> Option<String> {
        let is_waiting = self.wait.is_waiting();
        is_waiting.then(|| self.lookups.no_place(self.pod, host))
    }

    /// Connects to the first address of the host that answers. The error has the text of Go's dialer.
    pub(crate) async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, String> {
        let mut failure = None;
        for address in self.addresses(host, port).await? {
            match open(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => {
                    let problem = error_text::cause(&error);
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
        let found = self.lookups.find(self.pod, host, &self.wait).await;
        let ips = found.map_err(failed)?;
        Ok(ips.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
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

/// See the module's documentation.
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
