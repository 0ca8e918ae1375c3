variable "name" {
  description = "Prefix of every name."
  type        = string
  default     = "cloze"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,20}$", var.name))
    error_message = "2 to 21 small letters, digits and hyphens, a letter first."
  }
}

variable "region" {
  description = "AWS region."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "A region's name, as eu-central-1."
  }
}

variable "vpc_id" {
  description = "VPC of all resources."
  type        = string

  validation {
    condition     = startswith(var.vpc_id, "vpc-")
    error_message = "An identifier that begins with vpc-."
  }
}

variable "subnet_ids" {
  description = "Private subnets with a NAT gateway, in at least two zones."
  type        = list(string)

  validation {
    condition     = length(var.subnet_ids) >= 2 && alltrue([for id in var.subnet_ids : startswith(id, "subnet-")])
    error_message = "Two subnets at least, each beginning with subnet-."
  }
}

variable "api_cidrs" {
  description = "Networks that may reach the cluster's API from outside; if empty, it is only reachable from inside the VPC."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for one in var.api_cidrs : can(cidrhost(one, 0)) && !startswith(one, "0.0.0.0/")])
    error_message = "Must be networks such as 192.0.2.0/24, but not 0.0.0.0/0."
  }
}

variable "kubernetes_version" {
  description = "Kubernetes version of EKS."
  type        = string
  default     = "1.33"

  validation {
    condition     = can(regex("^1\\.[0-9]{2}$", var.kubernetes_version))
    error_message = "Must be a minor version such as 1.33."
  }
}

variable "gpu_instance_type" {
  description = "Instance type of the GPU nodes."
  type        = string
  default     = "p5.48xlarge"

  validation {
    condition     = can(regex("^(p|g)[0-9]", var.gpu_instance_type))
    error_message = "Must be an instance type with NVIDIA GPUs: p… or g…."
  }
}

variable "gpu_nodes_max" {
  description = "Maximum number of GPU nodes; the group scales to zero."
  type        = number
  default     = 2

  validation {
    condition     = var.gpu_nodes_max >= 1 && var.gpu_nodes_max <= 32
    error_message = "Must be between 1 and 32."
  }
}

variable "gpu_spot" {
  description = "Use spot GPU nodes: cheaper, but reclaimed with two minutes' notice (training saves and resumes on another node)."
  type        = bool
  default     = false
}

variable "database_class" {
  description = "Instance class of PostgreSQL."
  type        = string
  default     = "db.t4g.medium"

  validation {
    condition     = startswith(var.database_class, "db.")
    error_message = "Must begin with db."
  }
}

variable "old_versions_days" {
  description = "Days to keep replaced or deleted objects of the bucket."
  type        = number
  default     = 90

  validation {
    condition     = var.old_versions_days >= 7
    error_message = "Must be at least 7, so that an accidental deletion can be undone."
  }
}
