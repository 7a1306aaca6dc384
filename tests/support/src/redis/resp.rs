//! RESP for tests: a blocking connection, and a parser of replies.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Write},
    net::TcpStream,
    time::Duration,
};

/// The timeout for a reply: a test that stops a server must fail soon.
const PATIENCE: Duration = Duration::from_secs(10);

/// A reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    Integer(i64),
    Text(String),
    Nil,
    List(Vec<Reply>),
    Error(String),
}

/// A connection to a server.
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects to a port of 127.0.0.1.
    pub fn open(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends a command and reads its reply.
    pub fn ask(&mut self, words: &[&str]) -> io::Result<Reply> {
        let mut command = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            write!(command, "${}\r\n{word}\r\n", word.len())?;
        }
        self.stream.get_mut().write_all(&command)?;
        read(&mut self.stream)
    }
}

/// Reads one reply, or one command, which is a list of strings.
pub fn read(from: &mut impl BufRead) -> io::Result<Reply> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let line = line.trim_end();
    let (kind, rest) = line.split_at_checked(1).ok_or_else(|| garbage(line))?;
    let number = || rest.parse::<i64>().map_err(|_| garbage(line));
    match kind {
        "+" => Ok(Reply::Text(rest.to_owned())),
        "-" => Ok(Reply::Error(rest.to_owned())),
        ":" => number().map(Reply::Integer),
        "$" => match usize::try_from(number()?) {
            Err(_) => Ok(Reply::Nil),
            Ok(length) => {
                let mut text = vec![0; length + 2];
                from.read_exact(&mut text)?;
                text.truncate(length);
                Ok(Reply::Text(String::from_utf8_lossy(&text).into_owned()))
            }
        },
        "*" => match usize::try_from(number()?) {
            Err(_) => Ok(Reply::Nil),
            Ok(length) => (0..length).map(|_| read(from)).collect::<io::Result<_>>().map(Reply::List),
        },
        _ => Err(garbage(line)),
    }
}

fn garbage(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("expected a RESP reply, received {line:?}"))
}

impl Reply {
    /// All strings and numbers, from left to right.
    pub fn words(&self) -> Vec<String> {
        match self {
            Self::Integer(number) => vec![number.to_string()],
            Self::Text(text) => vec![text.clone()],
            Self::Nil => Vec::new(),
            Self::List(list) => list.iter().flat_map(Self::words).collect(),
            Self::Error(error) => panic!("error reply: {error}"),
        }
    }

    /// The first string or number.
    pub fn word(&self) -> Option<String> {
        self.words().into_iter().next()
    }

    /// The first string or number, as a number.
    pub fn number(&self) -> i64 {
        self.word()
            .and_then(|word| word.parse().ok())
            .unwrap_or_else(|| panic!("expected a number, received {self}"))
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => write!(f, "-{error}"),
            other => f.write_str(&other.words().join(" ")),
        }
    }
}

#[test]
fn parses_replies() {
    let mut bytes: &[u8] = b"*5\r\n:-3\r\n$2\r\n\r\n\r\n+OK\r\n$-1\r\n*1\r\n-ERR no\r\n";
    let want = Reply::List(vec![
        Reply::Integer(-3),
        Reply::Text("\r\n".to_owned()),
        Reply::Text("OK".to_owned()),
        Reply::Nil,
        Reply::List(vec![Reply::Error("ERR no".to_owned())]),
    ]);
    assert_eq!(read(&mut bytes).unwrap(), want);
    assert!(read(&mut bytes).is_err(), "nothing is left");
}
