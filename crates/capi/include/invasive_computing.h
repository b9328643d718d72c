// invasive_computing.h - the names of invasive OpenMP's listing without their namespace
//
// With this file listing 1.1 of Hollmann and Gerndt, "Invasive Computing: An Application Assisted
// Resource Management Approach" (2012), compiles as it is printed. New programs better include
// corewise.hpp.
#ifndef INVASIVE_COMPUTING_H
#define INVASIVE_COMPUTING_H

#include "corewise.hpp"

using corewise::Claim;
using corewise::CPUQuantity;
using corewise::NUMA;

using corewise::anywhere;
using corewise::compact;
using corewise::scatter;

#endif
