//! The call against servers that respond, fail, stay silent, speak another protocol, or are not there.

use std::convert::Infallible;

use bytes::{BufMut as _, Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use tokio::{io::AsyncWriteExt as _, net::TcpListener};

use super::*;
use proto::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus;

fn args(addr: &str) -> RequestArgs {
    RequestArgs {
        addr: Some(addr.parse().unwrap()),
        peek: false,
        hits: 7,
        timeout: Duration::from_secs(10),
        json: false,
        domain: "d".to_owned(),
        descriptors: vec!["a=b,c=d".parse().unwrap(), "e=f".parse().unwrap()],
        tls: TlsArgs::default(),
    }
}

/// Calls the server that these arguments name.
async fn send(args: &RequestArgs) -> Result<RateLimitResponse, Failure> {
    call(&Endpoint::new(args.addr.as_ref().unwrap(), &args.tls, &SERVICE)?, args).await
}

/// Runs a test where sockets can be used.
fn with_runtime<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// Responds with the request: a status for each descriptor, over limit when it counts 7.
async fn echo(call: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = call.into_body().collect().await.unwrap().to_bytes();
    // Five bytes precede a message of gRPC: the compression flag and the length.
    let request = RateLimitRequest::decode(&body[5..]).unwrap();
    if request.domain.is_empty() {
        let refused =
            Response::builder().header("content-type", "application/grpc").header("grpc-status", "2");
        let refused = refused.header("grpc-message", "rate limit domain must not be empty");
        return Ok(refused.body(Full::default()).unwrap());
    }
    let code = if request.hits_addend == 7 { Code::OverLimit } else { Code::Ok };
    let status = |entries: usize| DescriptorStatus {
        limit_remaining: u32::try_from(entries).unwrap(),
        ..Default::default()
    };
    let response = RateLimitResponse {
        overall_code: code.into(),
        statuses: request.descriptors.iter().map(|descriptor| status(descriptor.entries.len())).collect(),
        ..Default::default()
    };
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(u32::try_from(response.encoded_len()).unwrap());
    response.encode(&mut framed).unwrap();
    // Clients take the status from the headers as well as from trailers.
    let answer = Response::builder().header("content-type", "application/grpc").header("grpc-status", "0");
    Ok(answer.body(Full::new(framed.freeze())).unwrap())
}

/// The address of a server that answers with [`echo`].
async fn echoing() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        let _ = http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(socket), service_fn(echo))
            .await;
    });
    format!("http://{address}")
}

#[test]
fn sends_what_was_typed() {
    let response = with_runtime(async { send(&args(&echoing().await)).await }).unwrap();
    assert_eq!(response.overall_code(), Code::OverLimit);
    let entries: Vec<_> = response.statuses.iter().map(|status| status.limit_remaining).collect();
    assert_eq!(entries, [2, 1]);
}

#[test]
fn an_error_of_the_server_is_printed() {
    let failure =
        with_runtime(async { send(&RequestArgs { domain: String::new(), ..args(&echoing().await) }).await });
    let printed = failure.unwrap_err().to_string();
    assert!(printed.contains("Unknown: rate limit domain must not be empty"), "{printed}");
}

#[test]
fn the_error_of_an_unreachable_server_names_it() {
    let printed = with_runtime(async {
        let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        (address, send(&args(&format!("http://{address}"))).await.unwrap_err().to_string())
    });
    let (address, printed) = printed;
    assert!(printed.starts_with(&format!("cannot reach http://{address}: ")), "{printed}");
    assert!(printed.contains("Connection refused") && printed.contains("tollgate serve"), "{printed}");
}

#[test]
fn the_error_of_a_missing_unix_socket_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let addr = format!("unix:{}", folder.path().join("none.sock").display());
    let printed = with_runtime(send(&args(&addr))).unwrap_err().to_string();
    assert!(printed.starts_with(&format!("cannot reach {addr}: No such file")), "{printed}");
}

#[test]
fn waits_for_a_silent_server_no_longer_than_the_timeout() {
    let printed = with_runtime(async {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = format!("http://{}", silent.local_addr().unwrap());
        send(&RequestArgs { timeout: Duration::from_millis(50), ..args(&addr) })
            .await
            .unwrap_err()
            .to_string()
    });
    assert!(printed.contains("within 50ms"), "{printed}");
}

#[test]
fn an_error_suggests_that_the_port_has_another_protocol() {
    let printed = with_runtime(async {
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = format!("http://{}", other.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = other.accept().await {
                let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
            }
        });
        send(&args(&addr)).await.unwrap_err().to_string()
    });
    assert!(printed.contains("gRPC port?") || printed.contains("cannot reach"), "{printed}");
}

#[test]
fn the_environment_gives_the_default_address() {
    for (variables, expected) in [
        (&[][..], Ok("http://127.0.0.1:8081")),
        (&[("GRPC_PORT", "9081")], Ok("http://127.0.0.1:9081")),
        (&[("GRPC_HOST", "::"), ("GRPC_PORT", "9081")], Ok("http://127.0.0.1:9081")),
        (&[("GRPC_HOST", "10.0.0.7")], Ok("http://10.0.0.7:8081")),
        (&[("GRPC_UDS", "/run/rl.sock"), ("GRPC_PORT", "9081")], Ok("unix:/run/rl.sock")),
        (&[("GRPC_PORT", "0")], Err(())),
        (&[("GRPC_PORT", "http")], Err(())),
    ] {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let environment = Environment { variables: variables.collect(), ..Environment::default() };
        let server = local(&environment)
            .and_then(|addr| Endpoint::new(&addr, &TlsArgs::default(), &SERVICE))
            .map(|server| server.to_string());
        assert_eq!(server.as_deref().map_err(|_| ()), expected);
    }
}
