#pragma once

#include <future>
#include <memory>
#include <string>

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

namespace longshore {

/// A unary call whose messages are bytes: for methods without generated code here, and for garbage.
inline grpc::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel,
                            const std::string& method,
                            const std::string& request,
                            std::string* response) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  const grpc::Slice slice(request);
  const grpc::ByteBuffer sent(&slice, 1);
  grpc::ByteBuffer received;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, method, grpc::StubOptions(), &sent, &received,
                 [&](grpc::Status status) { done.set_value(std::move(status)); });
  grpc::Status status = done.get_future().get();
  grpc::Slice bytes;
  if (status.ok() && received.DumpToSingleSlice(&bytes).ok()) {
    response->assign(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
  }
  return status;
}

/// The first answer on a bidirectional stream to one request. Empty if there is none.
class RawExchange final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  RawExchange(const std::shared_ptr<grpc::Channel>& channel,
              const std::string& method,
              const std::string& request)
      : stub_(channel) {
    const grpc::Slice slice(request);
    sent_ = grpc::ByteBuffer(&slice, 1);
    stub_.PrepareBidiStreamingCall(&context_, method, grpc::StubOptions(), this);
    StartWriteLast(&sent_, grpc::WriteOptions());
    StartRead(&received_);
    StartCall();
  }
  std::string Await() {
    done_.get_future().wait();
    return answer_;
  }
  void OnReadDone(bool ok) override {
    grpc::Slice bytes;
    if (ok && received_.DumpToSingleSlice(&bytes).ok()) {
      answer_.assign(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
    }
  }
  void OnDone(const grpc::Status& /*status*/) override { done_.set_value(); }

 private:
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer sent_;
  grpc::ByteBuffer received_;
  std::string answer_;
  std::promise<void> done_;
};

}  // namespace longshore
