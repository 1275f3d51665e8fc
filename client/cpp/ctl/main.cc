// longshorectl: what an operator asks of a daemon.

#include "client/cpp/ctl/commands.h"

namespace {

constexpr char kDescription[] =
    "Looks into a longshored, measures it, and does the arithmetic of policies and memory.\n"
    "`longshorectl COMMAND --help` has the options of each command.\n"
    "\n"
    "exit codes: 0 done; 1 a check failed (conformance, a threshold of verify); 2 the command line "
    "is wrong;\n"
    "3 no answer (no daemon, it starts or stops, time is over); 4 refused, the message says why";

}  // namespace

int main(int argc, char** argv) {
  using longshore::ctl::CommandLine;
  CommandLine root("longshorectl", kDescription);
  root.AddVersion("longshorectl " LONGSHORE_VERSION);
  longshore::ctl::AddInfo(root);
  longshore::ctl::AddSessions(root);
  longshore::ctl::AddClose(root);
  longshore::ctl::AddTop(root);
  longshore::ctl::AddRecall(root);
  longshore::ctl::AddPolicy(root);
  longshore::ctl::AddSize(root);
  longshore::ctl::AddVerify(root);
  longshore::ctl::AddConformance(root);
  longshore::ctl::AddBench(root);
  return root.Main(argc, argv);
}
