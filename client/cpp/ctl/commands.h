#pragma once

#include "client/cpp/ctl/command_line.h"

// One function a command, each in the file of its name. To add one: here, in its file, in main.cc.
namespace longshore::ctl {

void AddInfo(CommandLine& root);
void AddSessions(CommandLine& root);
void AddClose(CommandLine& root);
void AddTop(CommandLine& root);
void AddRecall(CommandLine& root);
void AddPolicy(CommandLine& root);
void AddSize(CommandLine& root);
void AddVerify(CommandLine& root);
void AddConformance(CommandLine& root);
void AddBench(CommandLine& root);

}  // namespace longshore::ctl
