// Whether this build has the address sanitizer.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define NEURONTOOLS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define NEURONTOOLS_SANITIZED 1
#endif
#endif

#if defined(NEURONTOOLS_SANITIZED)
#include <sanitizer/asan_interface.h>
#endif
