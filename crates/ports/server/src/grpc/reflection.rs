//! `grpc.reflection.v1.ServerReflection` and its `v1alpha`, which have the same messages.
//!
//! A message is answered when the peer's windows have taken the response to the last.

use std::{collections::HashMap, sync::LazyLock};

use prost::Message as _;
use prost_reflect::{DescriptorPool, FileDescriptor};
use tonic::{Code, Status};
use tonic_reflection::pb::{
    v1::{
        self, ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse,
        ServerReflectionRequest, ServerReflectionResponse, ServiceResponse,
        server_reflection_request::MessageRequest as Question,
        server_reflection_response::MessageResponse as Reply,
    },
    v1alpha,
};

use super::{
    calls::Calls,
    framing::{self, PREFIX},
    rpc::Rpc,
    status::Failure,
    streaming::{Part, StreamMethod},
};

pub(super) struct Reflection;

impl StreamMethod for Reflection {
    fn take(&mut self, unread: &[u8], calls: &Calls) -> Result<Option<Part>, Failure> {
        let Some(message) = calls.first_message(Rpc::Reflection, unread)? else { return Ok(None) };
        let request = ServerReflectionRequest::decode(message).map_err(|error| {
            Status::internal(format!("the message is not a ServerReflectionRequest: {error}"))
        })?;
        let answer = Some(framing::framed(&answer(request)));
        Ok(Some(Part { length: PREFIX + message.len(), answer, pays_for_frame: false }))
    }
}

/// The descriptors of the port's services, and their files as bytes.
struct Descriptors {
    pool: DescriptorPool,
    files: HashMap<String, Vec<u8>>,
}

static DESCRIPTORS: LazyLock<Descriptors> = LazyLock::new(|| {
    let mut pool = DescriptorPool::new();
    for set in [
        proto::DESCRIPTORS,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        v1::FILE_DESCRIPTOR_SET,
        v1alpha::FILE_DESCRIPTOR_SET,
    ] {
        // The descriptors are compiled into this binary, so none fails; a test reads them all.
        let _ = pool.decode_file_descriptor_set(set);
    }
    let files = pool.files().map(|file| (file.name().to_owned(), file.encode_to_vec())).collect();
    Descriptors { pool, files }
});

/// Reads the descriptors, so that no metered call does.
#[cfg(any(test, feature = "testing"))]
pub(super) fn load() {
    LazyLock::force(&DESCRIPTORS);
}

/// The most bytes of an answer for a byte of its question, with their prefixes.
#[cfg(test)]
pub(super) fn amplification() -> usize {
    let pool = &DESCRIPTORS.pool;
    let files = pool.files().map(|file| Question::FileByFilename(file.name().to_owned()));
    let messages = pool.all_messages().map(|message| message.full_name().to_owned());
    let services = pool.services().map(|service| service.full_name().to_owned());
    let symbols = messages.chain(services).map(Question::FileContainingSymbol);
    let all = files.chain(symbols).chain([Question::ListServices(String::new())]);
    let ratio = |question| {
        let request = ServerReflectionRequest { host: String::new(), message_request: Some(question) };
        let asked = framing::framed(&request).len();
        framing::framed(&answer(request)).len().checked_div(asked)
    };
    all.filter_map(ratio).max().unwrap_or(0)
}

fn answer(request: ServerReflectionRequest) -> ServerReflectionResponse {
    let reply = match &request.message_request {
        None => Err((Code::InvalidArgument, "the request has no message_request")),
        Some(question) => {
            DESCRIPTORS.reply(question).ok_or((Code::NotFound, "there is no such file, symbol or extension"))
        }
    };
    let reply = reply.unwrap_or_else(|(code, text)| {
        Reply::ErrorResponse(ErrorResponse { error_code: code as i32, error_message: text.to_owned() })
    });
    ServerReflectionResponse {
        valid_host: request.host.clone(),
        original_request: Some(request),
        message_response: Some(reply),
    }
}

impl Descriptors {
    /// The answer to a question; `None` if what it asks for does not exist.
    fn reply(&self, question: &Question) -> Option<Reply> {
        let file = match question {
            Question::ListServices(_) => {
                let services = self.pool.services();
                let service = services
                    .map(|service| ServiceResponse { name: service.full_name().to_owned() })
                    .collect();
                return Some(Reply::ListServicesResponse(ListServiceResponse { service }));
            }
            Question::AllExtensionNumbersOfType(name) => {
                let message = self.pool.get_message_by_name(name)?;
                let numbers =
                    message.extensions().map(|extension| i32::try_from(extension.number()).unwrap_or(0));
                return Some(Reply::AllExtensionNumbersResponse(ExtensionNumberResponse {
                    base_type_name: name.clone(),
                    extension_number: numbers.collect(),
                }));
            }
            Question::FileByFilename(name) => self.pool.get_file_by_name(name),
            Question::FileContainingSymbol(symbol) => self.file_of(symbol),
            Question::FileContainingExtension(asked) => {
                let message = self.pool.get_message_by_name(&asked.containing_type)?;
                let number = u32::try_from(asked.extension_number).ok()?;
                message.get_extension(number).map(|extension| extension.parent_file())
            }
        };
        let file_descriptor_proto = vec![self.files.get(file?.name())?.clone()];
        Some(Reply::FileDescriptorResponse(FileDescriptorResponse { file_descriptor_proto }))
    }

    /// The file that declares a message, an enum, a service or an extension, or a member of one.
    fn file_of(&self, symbol: &str) -> Option<FileDescriptor> {
        let declared = |name: &str| {
            let message = self.pool.get_message_by_name(name).map(|message| message.parent_file());
            message
                .or_else(|| self.pool.get_enum_by_name(name).map(|declared| declared.parent_file()))
                .or_else(|| self.pool.get_service_by_name(name).map(|service| service.parent_file()))
                .or_else(|| self.pool.get_extension_by_name(name).map(|extension| extension.parent_file()))
        };
        declared(symbol).or_else(|| self.file_of_member(symbol))
    }

    fn file_of_member(&self, symbol: &str) -> Option<FileDescriptor> {
        let (parent, member) = symbol.rsplit_once('.')?;
        if let Some(message) = self.pool.get_message_by_name(parent) {
            let has_field = message.get_field_by_name(member).is_some();
            let has_member = has_field || message.oneofs().any(|oneof| oneof.name() == member);
            return has_member.then(|| message.parent_file());
        }
        if let Some(declared) = self.pool.get_enum_by_name(parent) {
            return declared.get_value_by_name(member).map(|_| declared.parent_file());
        }
        let service = self.pool.get_service_by_name(parent)?;
        service.methods().any(|method| method.name() == member).then(|| service.parent_file())
    }
}
