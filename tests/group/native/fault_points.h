// Places of the exchange at which a test can kill a rank.
#pragma once
extern "C" void cm_pass(const char* place);
