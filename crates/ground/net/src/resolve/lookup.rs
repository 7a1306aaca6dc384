//! Queries name servers for SRV records.

use std::net::{IpAddr, SocketAddr};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    time::timeout,
};

use super::{
    dns::{self, Answer},
    name_servers::NameServers,
};
use crate::{HostPort, ServerAddress};

/// The largest datagram: replies to our queries have up to 512 bytes, or are truncated.
const MAX_DATAGRAM: usize = 4096;

impl NameServers {
    /// The servers of a service, in the order of the Go service, which sorts them as strings.
    pub async fn services(&self, name: &str) -> Result<Vec<ServerAddress>, String> {
        let mut why = "not a name".to_owned();
        for name in self.names(name) {
            match self.query(&name).await {
                Ok(targets) if targets.is_empty() => why = format!("{name} has no servers (SRV records)"),
                Ok(targets) => return Ok(in_order(targets)),
                Err(failure) => why = failure,
            }
        }
        Err(why)
    }

    async fn query(&self, name: &str) -> Result<Vec<HostPort>, String> {
        let mut why = "no name server".to_owned();
        for _ in 0..self.attempts {
            for server in &self.addresses {
                match timeout(self.timeout, query_server(*server, name)).await {
                    Ok(Ok(Answer::Targets(targets))) => return Ok(targets),
                    Ok(Ok(Answer::NoSuchName)) => return Err(format!("{name} does not exist, by {server}")),
                    Ok(Ok(Answer::Failed(code))) => {
                        why = format!("{server}: failed with code {code}");
                    }
                    Ok(Ok(Answer::Truncated)) => why = format!("{server}: truncated reply"),
                    Ok(Err(failure)) => why = format!("{server}: {failure}"),
                    Err(_) => why = format!("{server}: no reply within {:?}", self.timeout),
                }
            }
        }
        Err(why)
    }
}

/// Sorted as strings of the form `host:port`.
fn in_order(mut targets: Vec<HostPort>) -> Vec<ServerAddress> {
    targets.sort_by_key(|target| format!("{}:{}", target.host, target.port));
    let address = |HostPort { host, port }| {
        // A target may be an address, which has no trailing dot.
        let bare = host.trim_end_matches('.');
        let host = if bare.parse::<IpAddr>().is_ok() { bare.to_owned() } else { host };
        ServerAddress::Tcp(HostPort { host, port })
    };
    targets.into_iter().map(address).collect()
}

async fn query_server(server: SocketAddr, name: &str) -> Result<Answer, String> {
    let id = fastrand::u16(..);
    let query = dns::query(id, name).ok_or_else(|| format!("{name:?} is not a name"))?;
    let reply = query_udp(server, &query).await.map_err(|error| error.to_string())?;
    if reply != Answer::Truncated {
        return Ok(reply);
    }
    let message = query_tcp(server, &query).await.map_err(|error| error.to_string())?;
    dns::reply(&query, &message).ok_or_else(|| "invalid reply over TCP".to_owned())
}

async fn query_udp(server: SocketAddr, query: &[u8]) -> std::io::Result<Answer> {
    let any: IpAddr = if server.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // Anyone may send a datagram; ignore those that are not the reply.
        if let Some(answer) = buffer.get(..length).and_then(|message| dns::reply(query, message)) {
            return Ok(answer);
        }
    }
}

async fn query_tcp(server: SocketAddr, query: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut socket = TcpStream::connect(server).await?;
    #[expect(clippy::cast_possible_truncation, reason = "a name has at most 255 bytes")]
    let length = query.len() as u16;
    socket.write_all(&[&length.to_be_bytes(), query].concat()).await?;
    let length = socket.read_u16().await?;
    let mut message = vec![0; length.into()];
    socket.read_exact(&mut message).await?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpListener;

    use super::*;
    use crate::resolve::dns::tests::srv_reply;

    #[test]
    fn servers_are_sorted_by_their_texts() {
        let target = |host: &str, port| HostPort { host: host.to_owned(), port };
        let sorted = [target("b.", 1), target("a.", 999), target("a.", 1000), target("10.0.0.1.", 1)];
        let sorted = in_order(sorted.into());
        let sorted: Vec<_> = sorted.iter().map(ToString::to_string).collect();
        assert_eq!(sorted, ["10.0.0.1:1", "a.:1000", "a.:999", "b.:1"]);
    }

    /// Both protocols on one port, which may be free for UDP alone.
    async fn same_port() -> (UdpSocket, TcpListener) {
        loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            match TcpListener::bind(udp.local_addr().unwrap()).await {
                Ok(tcp) => return (udp, tcp),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse),
            }
        }
    }

    /// A name server that replies with `reply_to`, over UDP and TCP.
    async fn name_server(reply_to: impl Fn(&[u8], bool) -> Vec<u8> + Clone + Send + 'static) -> SocketAddr {
        let (udp, tcp) = same_port().await;
        let address = udp.local_addr().unwrap();
        let over_tcp = reply_to.clone();
        tokio::spawn(async move {
            let mut buffer = [0; 512];
            while let Ok((length, from)) = udp.recv_from(&mut buffer).await {
                let _ = udp.send_to(b"noise", from).await;
                let _ = udp.send_to(&reply_to(&buffer[..length], false), from).await;
            }
        });
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = tcp.accept().await {
                let length = socket.read_u16().await.unwrap();
                let mut question = vec![0; length.into()];
                socket.read_exact(&mut question).await.unwrap();
                let answer = over_tcp(&question, true);
                socket.write_u16(u16::try_from(answer.len()).unwrap()).await.unwrap();
                socket.write_all(&answer).await.unwrap();
            }
        });
        address
    }

    fn querying(addresses: Vec<SocketAddr>) -> NameServers {
        let patience = Duration::from_millis(300);
        NameServers { addresses, search: vec!["test".to_owned()], ndots: 5, timeout: patience, attempts: 1 }
    }

    async fn found(name_servers: NameServers) -> Result<Vec<String>, String> {
        let found = name_servers.services("_memcache._tcp.cache").await;
        found.map(|found| found.iter().map(ToString::to_string).collect())
    }

    fn failing(question: &[u8], code: u8) -> Vec<u8> {
        let mut answer = srv_reply(question, &[]);
        answer[3] |= code;
        answer
    }

    #[tokio::test]
    async fn queries_the_next_name_server_after_a_timeout_or_failure() {
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let lame = name_server(|question, _| failing(question, 2)).await;
        let good = name_server(|question, _| srv_reply(question, &[("b.test", 2), ("a.test", 1)])).await;
        let all = querying(vec![silent.local_addr().unwrap(), lame, good]);
        assert_eq!(found(all).await, Ok(vec!["a.test.:1".to_owned(), "b.test.:2".to_owned()]));
        let error = found(querying(vec![lame])).await.unwrap_err();
        assert!(error.contains("code 2") && error.contains(&lame.to_string()), "{error}");
        let error = found(querying(vec![silent.local_addr().unwrap()])).await.unwrap_err();
        assert!(error.contains("no reply within 300ms"), "{error}");
    }

    #[tokio::test]
    async fn queries_over_tcp_after_a_truncated_reply() {
        let server = name_server(|question, is_tcp| {
            let mut answer = srv_reply(question, &[("a.test", 1)]);
            answer[2] |= if is_tcp { 0 } else { 2 };
            answer
        });
        assert_eq!(found(querying(vec![server.await])).await, Ok(vec!["a.test.:1".to_owned()]));
    }

    #[tokio::test]
    async fn every_name_is_tried() {
        let is_full = |question: &[u8]| question.windows(5).any(|part| part == b"\x04test");
        let server = name_server(move |question, _| {
            if is_full(question) { failing(question, 3) } else { srv_reply(question, &[("a.test", 1)]) }
        });
        assert_eq!(found(querying(vec![server.await])).await, Ok(vec!["a.test.:1".to_owned()]));
        let none = name_server(|question, _| srv_reply(question, &[])).await;
        assert!(found(querying(vec![none])).await.unwrap_err().contains("has no servers"));
        let unknown = name_server(|question, _| failing(question, 3)).await;
        assert!(
            found(querying(vec![unknown])).await.unwrap_err().contains("_memcache._tcp.cache does not exist")
        );
    }
}
