#include "tools/run_command.h"

int main(int argc, char** argv) { return lathe::run_command(argc, argv); }
